"""JAX's jaxprs as the rest of edbatch sees them.

A jaxpr is a typed list of equations, each an application of a *primitive*. JAX keeps
its parts in `jax.extend` and `jax.interpreters`, which may change in any release, as
may the parameters of primitives. Only this package knows them, and only its
`internals.py` imports them: `tests/cell/test_jaxpr.py` reads the sources for others,
and checks each detail that is relied on here, so that a new release of JAX fails there,
by name.

Others import from the package, and not from its modules. They use `Var`, `Literal` and
`JaxprEqn` as types, the `invars`, `outvars` and `effects` of an equation, and the
functions below for everything else.
"""

from edbatch.cell.jaxpr.body import (
    Body,
    as_body,
    as_function,
    body_of,
    called_body,
    inner_bodies,
    trace,
)
from edbatch.cell.jaxpr.control_flow import (
    Scan,
    While,
    read_branches,
    read_scan,
    read_while,
)
from edbatch.cell.jaxpr.equation import (
    Atom,
    dtype_of,
    equation_key,
    is_float,
    literal_key,
    literal_value,
    name_of,
    new_variable,
    rewire,
    shape_of,
    size_of,
    variables,
)
from edbatch.cell.jaxpr.identity import (
    asks_for_nothing,
    generator_of,
    groups_text,
    has_rule_of_jvp,
    is_of_jax,
    parameters_of,
    surroundings_of,
    tangents_of,
    type_text,
)
from edbatch.cell.jaxpr.internals import (
    JaxprEqn,
    Literal,
    Var,
)
from edbatch.cell.jaxpr.operations import (
    Cut,
    Dot,
    Lookup,
    broadcast_dims,
    exponent_of,
    mantissa_bits,
    read_cuts,
    read_dot,
    read_lookup,
)
from edbatch.cell.jaxpr.own_primitives import (
    Stored,
    reverse_only_identity,
    stored_primitive,
)
from edbatch.cell.jaxpr.tracing import (
    is_staging,
    is_tracing,
    trace_state,
)

__all__ = [
    "Atom",
    "Body",
    "Cut",
    "Dot",
    "JaxprEqn",
    "Literal",
    "Lookup",
    "Scan",
    "Stored",
    "Var",
    "While",
    "as_body",
    "as_function",
    "asks_for_nothing",
    "body_of",
    "broadcast_dims",
    "called_body",
    "dtype_of",
    "equation_key",
    "exponent_of",
    "generator_of",
    "groups_text",
    "has_rule_of_jvp",
    "inner_bodies",
    "is_float",
    "is_of_jax",
    "is_staging",
    "is_tracing",
    "literal_key",
    "literal_value",
    "mantissa_bits",
    "name_of",
    "new_variable",
    "parameters_of",
    "read_branches",
    "read_cuts",
    "read_dot",
    "read_lookup",
    "read_scan",
    "read_while",
    "reverse_only_identity",
    "rewire",
    "shape_of",
    "size_of",
    "stored_primitive",
    "surroundings_of",
    "tangents_of",
    "trace",
    "trace_state",
    "type_text",
    "variables",
]
