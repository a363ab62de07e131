"""JAX primitives by name, grouped by their properties.

JAX may rename them in any release: `tests/cell/test_jaxpr.py` checks each of them.
"""

DOT_GENERAL = "dot_general"
STOP_GRADIENT = "stop_gradient"
CAST = "convert_element_type"
WHILE, SCAN, COND = "while", "scan", "cond"
CUSTOM_VJP = "custom_vjp_call"
CUSTOM_LINEAR = "custom_lin"  # applied to tangents by a custom_vjp rule
OF_EACH_ROW = "of_each_row"  # a primitive of edbatch
SLICE = "slice"
PAD = "pad"
DYNAMIC_SLICE = "dynamic_slice"
LOOKUPS = frozenset({DYNAMIC_SLICE, "gather"})

PRODUCTS = frozenset({DOT_GENERAL, "conv_general_dilated"})
# They show an array in another shape and compute nothing.
VIEWS = frozenset({"broadcast_in_dim", "reshape", "squeeze", "transpose"})
# Additions, with the signs of their operands.
ADDITIONS = {"add": (1, 1), "add_any": (1, 1), "sub": (1, -1), "neg": (-1,)}
REMAT = "remat2"
# Calls that can be inlined, and the parameter that holds the body.
CALLS = {"jit": "jaxpr"}

# Primitives whose derivative is finite wherever their inputs and outputs are: linear
# ones, products, and those with bounded derivative. Any other may have a pole.
# fmt: off
FINITE_DERIVATIVE = frozenset({
    "abs", "add", "add_any", "broadcast_in_dim", "clamp", "concatenate",
    "cond", "conj", "conv_general_dilated", "convert_element_type", "copy", "cos",
    "cummax", "cummin", "cumsum", "custom_jvp_call", "dot_general", "dynamic_slice",
    "dynamic_update_slice", "erf", "exp", "exp2", "expm1", "gather", "imag", "jit",
    "logistic", "max", "min", "mul", "neg", OF_EACH_ROW, "optimization_barrier", "pad",
    "real", "reduce_max", "reduce_min", "reduce_precision", "reduce_sum", "remat2",
    "reshape", "rev", "scan", "scatter", "scatter-add", "select_n", "sign", "sin",
    "slice", "sort", "split", "square", "squeeze", "stop_gradient", "sub", "tanh",
    "transpose", "while",
})
# The members of FINITE_DERIVATIVE whose derivative is finite for any input.
LINEAR = frozenset({
    "add", "add_any", "broadcast_in_dim", "clamp", "concatenate", "conj",
    "convert_element_type", "copy", "cumsum", "dynamic_slice", "dynamic_update_slice",
    "gather", "imag", "max", "min", "neg", OF_EACH_ROW, "optimization_barrier", "pad",
    "real", "reduce_precision", "reduce_sum", "reshape", "rev", "scatter",
    "scatter-add", "select_n", "slice", "split", "squeeze", "stop_gradient", "sub",
    "transpose",
})
# Jointly linear in all of their inputs or, in LINEAR_IN, in the inputs at these places.
LINEAR_IN_ALL = frozenset({
    "add", "add_any", "broadcast_in_dim", "concatenate", CAST, "copy", "cumsum", "fft",
    "name", "neg", "pad", "real", "reduce_sum", "reduce_window_sum", "reshape", "rev",
    "slice", "split", "squeeze", "stack", STOP_GRADIENT, "sub", "tile", "transpose",
    "unstack",
})
LINEAR_IN = {
    "div": (0,), "dynamic_slice": (0,), "dynamic_update_slice": (0, 1), "gather": (0,),
    "scatter": (0, 2), "scatter-add": (0, 2), "scatter-mul": (0,),
    "triangular_solve": (1,),
}
# Their results, which are also their derivatives, may overflow.
OVERFLOWS = frozenset({"exp", "exp2", "expm1"})
# Bounds of their results, for any input.
RANGES = {
    "cos": (-1.0, 1.0), "erf": (-1.0, 1.0), "logistic": (0.0, 1.0),
    "sign": (-1.0, 1.0), "sin": (-1.0, 1.0), "tanh": (-1.0, 1.0),
}
# They have a pole where this input is zero, and none where it is positive.
POLE_AT_ZERO = {"div": 1, "log": 0, "pow": 0, "rsqrt": 0, "sqrt": 0}
# Their results are positive, unless they underflow.
EXPONENTIALS = frozenset({"exp", "exp2", "logistic"})
# Their results are nonnegative, for any input.
NOT_NEGATIVE = frozenset({"square", "abs"})
# Their results are positive, or nonnegative, if all of their inputs are.
KEEPS_SIGN = frozenset({
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "div", "mul",
    "reduce_max", "reduce_min", "reduce_sum", "reshape", "rsqrt", "select_n", "slice",
    "split", "sqrt", "squeeze", "stop_gradient", "transpose",
})
# The members of KEEPS_SIGN whose result may be zero although all inputs are positive.
UNDERFLOWS = frozenset({"div", "mul"})
# Steps by which JAX normalizes an index: a negative index counts from the end, and an
# index out of bounds is clipped.
INDEX_STEPS = frozenset({
    "add", "clamp", CAST, "ge", "gt", "le", "lt", "max", "min", "select_n",
})
# They move values, select them or change their sign, without rounding.
EXACT = frozenset({
    "abs", "broadcast_in_dim", "concatenate", "copy", "dynamic_slice",
    "dynamic_update_slice", "gather", "max", "min", "neg", "optimization_barrier",
    "pad", "reshape", "rev", "select_n", "slice", "split", "squeeze", "stop_gradient",
    "transpose",
})
# They move values to positions that are known when a cell is traced.
MOVES = frozenset({
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "pad", "reshape",
    "rev", "slice", "split", "squeeze", "tile", "transpose",
})
# fmt: on
