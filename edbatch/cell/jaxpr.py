"""JAX's jaxprs as the rest of edbatch sees them.

A jaxpr is a typed list of equations, each an application of a *primitive*. JAX keeps
its parts in `jax.extend` and `jax.interpreters`, which may change in any release, as
may the parameters of primitives. This is the only file that knows them:
`tests/cell/test_jaxpr.py` reads the sources for others, and checks each detail that is
relied on here, so that a new release of JAX fails there, by name.

Others use `Var`, `Literal` and `JaxprEqn` as types, the `invars`, `outvars` and
`effects` of an equation, and the functions below for everything else.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    Primitive,
    get_opaque_trace_state,
    jaxpr_as_fun,
)
from jax.extend.core import JaxprEqn as JaxprEqn  # for others, too
from jax.extend.core import Literal as Literal
from jax.extend.core import Var as Var
from jax.extend.core import primitives as _primitives
from jax.interpreters import ad, batching, mlir
from jax.lax import GatherScatterMode

from edbatch.cell.primitives import (
    CALLS,
    COND,
    DOT_GENERAL,
    DYNAMIC_SLICE,
    LOOKUPS,
    SCAN,
    SLICE,
    WHILE,
)

Atom = Var | Literal

with jax.ensure_compile_time_eval():
    _OUTSIDE = get_opaque_trace_state()


@dataclass(frozen=True, eq=False)
class Body:
    """A traced function, or one that an equation calls.

    Attributes:
        inputs: Its arguments.
        constants: Variables of the arrays that it closes over, and these; without
            the arrays where an equation hands them on as arguments.
        equations: Its operations, in an order in which they can run.
        outputs: Its results.
    """

    inputs: Sequence[Var]
    constants: dict[Var, Any]
    equations: Sequence[JaxprEqn]
    outputs: Sequence[Atom]


def body_of(jaxpr: Any) -> Body:
    """Returns the parts of a jaxpr, closed or not.

    Args:
        jaxpr: As `jax.make_jaxpr` returns it, or a part of one.

    Returns:
        Its parts.
    """
    opened = getattr(jaxpr, "jaxpr", jaxpr)  # one class since JAX 0.12
    constants = zip(opened.constvars, getattr(jaxpr, "consts", ()), strict=False)
    return Body(opened.invars, dict(constants), opened.eqns, opened.outvars)


def trace(function: Callable[..., Any], *specs: Any) -> tuple[Body, Any]:
    """Traces a function.

    Args:
        function: Of pytrees of arrays.
        *specs: Its arguments, with ``jax.ShapeDtypeStruct`` leaves.

    Returns:
        The function, and the structure of its output.
    """
    closed, output = jax.make_jaxpr(function, return_shape=True)(*specs)
    return body_of(closed), jax.tree.structure(output)


def as_function(
    arguments: Sequence[Var],
    equations: Sequence[JaxprEqn],
    results: Sequence[Atom],
    constants: dict[Var, Any] | None = None,
) -> Callable[..., Sequence[Any]]:
    """Makes a function of equations.

    Args:
        arguments: The variables that the function takes.
        equations: In an order in which they can run.
        results: Its results.
        constants: Variables that are neither arguments nor computed, and their arrays.

    Returns:
        The function, of arrays. Rules of differentiation and effects stay.
    """
    constants = constants or {}
    jaxpr = _template().replace(
        constvars=list(constants),
        invars=list(arguments),
        outvars=list(results),
        eqns=list(equations),
        effects=set().union(*(eqn.effects for eqn in equations)),
    )
    function: Callable[..., Sequence[Any]]
    function = jaxpr_as_fun(ClosedJaxpr(jaxpr, list(constants.values())))
    return function


@cache
def _template() -> Jaxpr:
    """A jaxpr that lends its debugging information to those made here."""
    return jax.make_jaxpr(lambda: ())().jaxpr


def name_of(eqn: JaxprEqn) -> str:
    """Returns the name of an equation's primitive."""
    name: str = eqn.primitive.name
    return name


def new_variable(like: Atom) -> Var:
    """Returns a variable of the same shape and dtype as another."""
    return Var(like.aval)


def rewire(
    eqn: JaxprEqn,
    invars: Sequence[Atom] | None = None,
    outvars: Sequence[Var] | None = None,
) -> JaxprEqn:
    """Returns an equation that reads or computes other variables.

    Args:
        eqn: The equation.
        invars: Its new inputs; the same by default.
        outvars: Its new results; the same by default.

    Returns:
        The new equation.
    """
    return eqn.replace(
        invars=None if invars is None else list(invars),
        outvars=None if outvars is None else list(outvars),
    )


def variables(atoms: Iterable[Atom]) -> list[Var]:
    """Returns the variables among atoms, without literals."""
    return [each for each in atoms if isinstance(each, Var)]


def shape_of(atom: Atom) -> tuple[int, ...]:
    """Returns the shape of an array."""
    aval: Any = atom.aval
    return aval.shape


def dtype_of(atom: Atom) -> Any:
    """Returns the dtype of an array."""
    aval: Any = atom.aval
    return aval.dtype


def size_of(atom: Atom) -> int:
    """Returns the number of elements of an array."""
    return math.prod(shape_of(atom))


def is_float(atom: Atom) -> bool:
    """Tells whether an array has a dtype that derivatives exist for."""
    return bool(jnp.issubdtype(dtype_of(atom), jnp.inexact))


def literal_value(literal: Literal) -> np.ndarray:
    """Returns the number of a literal."""
    return np.asarray(literal.val)


def literal_key(literal: Literal) -> Any:
    """Returns a key that is equal for literals of one value and dtype."""
    value = literal_value(literal)
    return value.dtype, value.shape, value.tobytes()


def equation_key(eqn: JaxprEqn) -> Any:
    """Returns what an equation computes, whatever the values that it reads.

    Args:
        eqn: The equation.

    Returns:
        A key that is equal for two equations if they do the same to their inputs;
        one of its own where that cannot be known, or if the equation has effects.
    """
    parts = (
        eqn.primitive,
        tuple(sorted(eqn.params.items(), key=lambda item: item[0])),
        tuple((shape_of(each), dtype_of(each)) for each in eqn.outvars)
        if all(hasattr(each.aval, "shape") for each in eqn.outvars)
        else id(eqn),
        eqn.ctx,
    )
    try:
        hash(parts)
    except TypeError:
        return id(eqn)
    return id(eqn) if eqn.effects else parts


def inner_bodies(eqn: JaxprEqn) -> list[Body]:
    """Returns the functions that an equation calls, in the order of its parameters."""
    found = jax.tree.leaves(
        list(eqn.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)
    )
    return [body_of(each) for each in found if isinstance(each, ClosedJaxpr | Jaxpr)]


def called_body(eqn: JaxprEqn) -> Body | None:
    """Returns the function that an equation calls and that can take its place.

    Args:
        eqn: An equation.

    Returns:
        The function; None if the equation is no call, has a rule of differentiation, or
        says where its arrays lie.
    """
    parameter = CALLS.get(eqn.primitive.name)
    if parameter is None:
        return None
    asked = [
        *eqn.params.get("in_shardings", ()),
        *eqn.params.get("out_shardings", ()),
        *filter(None, eqn.params.get("in_layouts", ())),
        *filter(None, eqn.params.get("out_layouts", ())),
    ]
    if any(type(each).__name__ != "UnspecifiedValue" for each in asked):
        return None
    return body_of(eqn.params[parameter])


def is_of_jax(eqn: JaxprEqn) -> bool:
    """Tells whether an equation's primitive is one of JAX, whose rules it knows."""
    return eqn.primitive in _primitives_of_jax()


@cache
def _primitives_of_jax() -> frozenset[Primitive]:
    """Those of `jax.extend`, which leaves some out."""
    others: list[Callable[[Array], Any]] = [
        lambda x: jax.lax.split(x, (1, 1)),
        lambda x: jnp.stack([x, x]),
        jnp.unstack,
    ]
    known = {each for each in vars(_primitives).values() if isinstance(each, Primitive)}
    for each in others:
        equations = [*jax.make_jaxpr(each)(np.zeros(2, np.float32)).eqns]
        for eqn in equations:
            known.add(eqn.primitive)
            equations += [own for body in inner_bodies(eqn) for own in body.equations]
    return frozenset(known)


def parameters_of(eqn: JaxprEqn) -> dict[str, Any]:
    """Returns the parameters of an equation by name, without its rule of tangents."""
    return {name: each for name, each in eqn.params.items() if name != _RULE_OF_JVP}


def surroundings_of(eqn: JaxprEqn) -> tuple[Any, ...] | None:
    """Returns what else decides how an equation is lowered.

    Args:
        eqn: The equation.

    Returns:
        Settings that it was traced under; None if it names a mesh, a place to run or
        metadata.
    """
    asks = eqn.ctx.compute_type is not None or eqn.ctx.xla_metadata
    mesh = getattr(eqn.ctx, "cur_abstract_mesh", None)
    if asks or mesh is None or not mesh.empty:
        return None
    return (bool(getattr(eqn.ctx, "threefry_partitionable", True)),)


def tangents_of(eqn: JaxprEqn) -> Body | None:
    """Traces the rule of an equation of `jax.custom_jvp`.

    Args:
        eqn: The equation.

    Returns:
        Its results and their tangents, from its inputs and theirs; None if an input has
        no tangents, or the rule asks which of them are zero.
    """
    floats = all(is_float(each) for each in eqn.invars)
    if not floats or eqn.params["symbolic_zeros"]:
        return None
    specs = [jax.ShapeDtypeStruct(shape_of(v), dtype_of(v)) for v in eqn.invars]
    inputs = [new_variable(each) for each in eqn.invars]
    function = as_function(inputs, [rewire(eqn, inputs)], eqn.outvars)
    return trace(lambda *args: jax.jvp(function, *args), specs, specs)[0]


def has_rule_of_jvp(eqn: JaxprEqn) -> bool:
    """Tells whether an equation has a rule of `jax.custom_jvp`."""
    return _RULE_OF_JVP in eqn.params


_RULE_OF_JVP = "jvp_jaxpr_fun"


def as_body(value: object) -> Body | None:
    """Returns the parts of a jaxpr; None of anything else."""
    return body_of(value) if isinstance(value, ClosedJaxpr | Jaxpr) else None


def type_text(atom: Any) -> str | None:
    """Writes the type of a variable or literal: shape, dtype, and whether it is weak.

    Args:
        atom: A variable, a literal, or the abstract value of one.

    Returns:
        The text; None for what is no array, or lies on a mesh.
    """
    aval: Any = getattr(atom, "aval", atom)
    if not hasattr(aval, "str_short"):
        return None
    text = str(aval.str_short(short_dtypes=False))
    if "@" in text or "{" in text:
        return None
    return text + ("~" if aval.weak_type else "")


def asks_for_nothing(value: object) -> bool:
    """Tells whether a parameter stands for no sharding, or for no mesh."""
    if isinstance(value, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return bool(value.empty)
    return type(value).__name__ == "UnspecifiedValue"


def groups_text(value: object) -> str | None:
    """Writes how many operands of an equation belong together, as JAX 0.12 notes it.

    Args:
        value: A parameter of an equation.

    Returns:
        The text; None of anything else, or if it names an object by its address.
    """
    if not type(value).__module__.endswith(".flattree"):
        return None
    text = repr(value)
    return None if " at 0x" in text else text


def generator_of(value: object) -> str | None:
    """Returns the name of one of JAX's own generators of random numbers; else None."""
    name = getattr(value, "name", None)
    own = type(value).__name__ == "PRNGImpl" and name in _GENERATORS
    return str(name) if own else None


_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")


class Dot(NamedTuple):
    """The dimensions of a product.

    Attributes:
        dims: Contracted dimensions of the left and of the right operand.
        batch_dims: Their batch dimensions.
        precision: As for `jax.lax.dot_general`.
        is_plain: Whether it asks for nothing else: no sharding of its result, no
            metadata, no place to run.
    """

    dims: tuple[tuple[int, ...], tuple[int, ...]]
    batch_dims: tuple[tuple[int, ...], tuple[int, ...]]
    precision: Any
    is_plain: bool


def read_dot(eqn: Any) -> Dot | None:
    """Reads an equation as a product; None if it is no ``dot_general``."""
    if not isinstance(eqn, JaxprEqn) or eqn.primitive.name != DOT_GENERAL:
        return None
    dims, batch_dims = eqn.params["dimension_numbers"]
    is_plain = (
        eqn.params.get("out_sharding") is None
        and eqn.ctx.compute_type is None
        and not eqn.ctx.xla_metadata
    )
    left, right = (tuple(map(int, each)) for each in dims)
    batch_left, batch_right = (tuple(map(int, each)) for each in batch_dims)
    precision = eqn.params["precision"]
    return Dot((left, right), (batch_left, batch_right), precision, is_plain)


class Lookup(NamedTuple):
    """Rows read from a table by number.

    Attributes:
        table: The table, ``[N, ...]``.
        numbers: The rows' numbers: a scalar, or ``[..., 1]``.
        clips: Whether a number beyond the table stands for its first or last row; else
            it reads none.
    """

    table: Atom
    numbers: Atom
    clips: bool


def read_lookup(eqn: JaxprEqn) -> Lookup | None:
    """Reads an equation as a lookup of whole rows, which its result holds in order.

    Args:
        eqn: An equation.

    Returns:
        The lookup; None for other equations.
    """
    if eqn.primitive.name not in LOOKUPS:
        return None
    table, numbers = eqn.invars[:2]
    shape = shape_of(table)
    if not shape or tuple(eqn.params["slice_sizes"]) != (1, *shape[1:]):
        return None
    if eqn.primitive.name == DYNAMIC_SLICE:
        return Lookup(table, numbers, clips=True)
    dims, ndim = eqn.params["dimension_numbers"], len(shape_of(eqn.outvars[0]))
    kept = len(shape) - len(dims.collapsed_slice_dims)
    whole = (
        tuple(dims.start_index_map) == (0,)
        and not dims.operand_batching_dims
        and tuple(dims.offset_dims) == tuple(range(ndim - kept, ndim))
        and set(dims.collapsed_slice_dims) <= {0}
    )
    clips = eqn.params["mode"] == GatherScatterMode.CLIP
    return Lookup(table, numbers, clips) if whole else None


class Cut(NamedTuple):
    """A result of a slice or split: consecutive elements along one dimension."""

    dim: int
    start: int
    stop: int


def read_cuts(eqn: JaxprEqn) -> list[Cut]:
    """Reads an equation as a split, or as a slice along one dimension.

    Args:
        eqn: An equation.

    Returns:
        Where each of its results stands in its input; empty for other equations.
    """
    if eqn.primitive.name == "split":
        dim, stops = eqn.params["axis"], np.cumsum(eqn.params["sizes"]).tolist()
        starts = [0, *stops[:-1]]
        return [Cut(dim, *each) for each in zip(starts, stops, strict=True)]
    if eqn.primitive.name != SLICE or set(eqn.params["strides"] or ()) - {1}:
        return []
    limits = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True)
    shape = shape_of(eqn.invars[0])
    found = [
        Cut(dim, int(start), int(stop))
        for dim, (start, stop) in enumerate(limits)
        if (start, stop) != (0, shape[dim])
    ]
    return found if len(found) == 1 else []


def broadcast_dims(eqn: JaxprEqn) -> tuple[int, ...] | None:
    """Returns where a broadcast puts dimensions; None if the equation is none."""
    if eqn.primitive.name != "broadcast_in_dim" or len(eqn.invars) != 1:
        return None
    return tuple(eqn.params["broadcast_dimensions"])


def exponent_of(eqn: JaxprEqn) -> int | None:
    """Returns the exponent of a whole power; None if the equation is none."""
    return eqn.params["y"] if eqn.primitive.name == "integer_pow" else None


def mantissa_bits(eqn: JaxprEqn) -> int | None:
    """Returns the bits that a number is rounded to; None if the equation does not."""
    is_rounding = eqn.primitive.name == "reduce_precision"
    return eqn.params["mantissa_bits"] if is_rounding else None


class Scan(NamedTuple):
    """A loop over arrays: it reads constants, carried values, and the arrays."""

    num_consts: int
    num_carried: int
    length: int
    body: Body
    reverse: bool


def read_scan(eqn: JaxprEqn) -> Scan | None:
    """Reads an equation as a `jax.lax.scan`; None if it is none."""
    if eqn.primitive.name != SCAN:
        return None
    if "ft_in" in eqn.params:  # since JAX 0.12
        consts, carried, _ = map(len, eqn.params["ft_in"].unpack())
    else:
        consts, carried = eqn.params["num_consts"], eqn.params["num_carry"]
    body, reverse = body_of(eqn.params["jaxpr"]), eqn.params["reverse"]
    return Scan(consts, carried, eqn.params["length"], body, reverse)


class While(NamedTuple):
    """A loop: it reads constants of its condition, of its body, and carried values."""

    condition_consts: int
    body_consts: int
    condition: Body
    body: Body


def read_while(eqn: JaxprEqn) -> While | None:
    """Reads an equation as a `jax.lax.while_loop`; None if it is none."""
    if eqn.primitive.name != WHILE:
        return None
    return While(
        eqn.params["cond_nconsts"],
        eqn.params["body_nconsts"],
        body_of(eqn.params["cond_jaxpr"]),
        body_of(eqn.params["body_jaxpr"]),
    )


def read_branches(eqn: JaxprEqn) -> list[Body] | None:
    """Reads an equation as a `jax.lax.switch`; None if it is none."""
    if eqn.primitive.name != COND:
        return None
    return [body_of(each) for each in eqn.params["branches"]]


def reverse_only_identity(refuse: Callable[..., NoReturn]) -> Callable[[Any], Array]:
    """Makes an identity that is differentiated in reverse mode only.

    Its tangent passes through a second primitive, which reverse mode transposes, and
    thereby removes, before anything is computed.

    Args:
        refuse: Called if the tangent is computed, mapped or compiled; raises.

    Returns:
        The identity, of one array of floating numbers.
    """
    value, tangent = Primitive("reverse_only"), Primitive("tangent_of_reverse_only")

    def jvp(primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
        [own], [moved] = primals, tangents
        return value.bind(own), moved if type(moved) is ad.Zero else tangent.bind(moved)

    value.def_abstract_eval(lambda aval: aval)
    value.def_impl(lambda array: array)
    batching.defvectorized(value)
    mlir.register_lowering(value, lambda _, array: [array])
    ad.primitive_jvps[value] = jvp

    tangent.def_abstract_eval(lambda aval: aval)
    tangent.def_impl(refuse)
    batching.primitive_batchers[tangent] = refuse
    mlir.register_lowering(tangent, refuse)
    ad.deflinear2(tangent, lambda cotangent, _: [cotangent])
    return lambda array: value.bind(array)


class Stored(Protocol):
    """A function, and the lowered program that is kept of it.

    Attributes:
        platform: The platform that it was lowered for.
        results: Shapes and dtypes of its results.
    """

    platform: str
    results: Sequence[jax.ShapeDtypeStruct]

    def traced(self, *arrays: Any) -> Sequence[Any]:
        """Computes the function, in operations of JAX."""

    def kept(self, *arrays: Any) -> Sequence[Any]:
        """Runs the program that is kept of it."""


def stored_primitive() -> Callable[..., list[Array]]:
    """Makes an operation that is lowered as a program that is kept.

    Where it is lowered for another platform, and under `jax.vmap` and `jax.jvp`, it is
    the function that the program was made of.

    Returns:
        A function of a `Stored` and its arguments.
    """
    call = Primitive("stored_program")
    call.multiple_results = True
    instantiate: Any = ad.instantiate_zeros
    lower_function: Any = mlir.lower_fun

    def lower(context: Any, *arrays: Any, stored: Stored) -> Any:
        own = tuple(context.module_context.platforms) == (stored.platform,)
        run = stored.kept if own else stored.traced
        return lower_function(run, multiple_results=True)(context, *arrays)

    def batch(arrays: Any, axes: Any, *, stored: Stored) -> Any:
        mapped: Any = jax.vmap(lambda *own: list(stored.traced(*own)), tuple(axes))
        results = mapped(*arrays)
        return results, [0] * len(results)

    def jvp(primals: Any, tangents: Any, *, stored: Stored) -> Any:
        moved = tuple(instantiate(each) for each in tangents)
        return jax.jvp(lambda *own: list(stored.traced(*own)), tuple(primals), moved)

    call.def_impl(lambda *arrays, stored: list(stored.traced(*arrays)))
    call.def_abstract_eval(
        lambda *_, stored: [jax.typeof(each) for each in stored.results]
    )
    mlir.register_lowering(call, lower)
    batching.primitive_batchers[call] = batch
    ad.primitive_jvps[call] = jvp
    return lambda stored, *arrays: call.bind(*arrays, stored=stored)


def is_tracing() -> bool:
    """Tells whether the caller is being traced, by `jax.jit`, `jax.grad` or another.

    Example:
        >>> is_tracing(), jax.eval_shape(lambda: jnp.bool(is_tracing())).shape
        (False, ())
    """
    return bool(get_opaque_trace_state() != _OUTSIDE)


def trace_state() -> Any:
    """Returns what is equal as long as the same transformations of JAX trace.

    Example:
        >>> before, inside = trace_state(), []
        >>> _ = jax.eval_shape(lambda: inside.append(trace_state()))
        >>> trace_state() == before, inside[0] == before
        (True, False)
    """
    return get_opaque_trace_state()


def is_staging() -> bool:
    """Tells whether what the caller computes becomes equations of a compiled function.

    Example:
        >>> jax.grad(lambda x: (print(is_staging()), x)[1])(1.0).item()
        False
        1.0
        >>> jax.jit(jax.grad(lambda x: (print(is_staging()), x)[1]))(1.0).item()
        True
        1.0
    """
    return is_tracing() and isinstance(jnp.zeros(()), jax.core.Tracer)
