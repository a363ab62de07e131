"""JAX's jaxprs as the rest of edbatch sees them.

A jaxpr is a typed list of equations, each an application of a *primitive*. JAX keeps
their classes in `jax.extend` and `jax.interpreters`, which may change in any release,
as may the parameters of primitives. Only this package knows them, and only its
`internals.py` imports them. `tests/cell/test_jaxpr.py` searches the sources for other
imports and checks each detail that edbatch relies on, so that an incompatible release
of JAX fails there, with the name of the detail.

The rest of edbatch imports from the package and not from its modules; nothing in it is
public. Importers use `Var`, `Literal` and `JaxprEqn` as types, the `invars`, `outvars`
and `effects` of an equation, and the functions below for everything else.
"""

from edbatch.cell.jaxpr.comparison import changeable_constants as changeable_constants
from edbatch.cell.jaxpr.comparison import same_operations as same_operations
from edbatch.cell.jaxpr.control_flow import Scan as Scan
from edbatch.cell.jaxpr.control_flow import While as While
from edbatch.cell.jaxpr.control_flow import read_branches as read_branches
from edbatch.cell.jaxpr.control_flow import read_scan as read_scan
from edbatch.cell.jaxpr.control_flow import read_while as read_while
from edbatch.cell.jaxpr.equation import Atom as Atom
from edbatch.cell.jaxpr.equation import dtype_of as dtype_of
from edbatch.cell.jaxpr.equation import equation_key as equation_key
from edbatch.cell.jaxpr.equation import equations_of as equations_of
from edbatch.cell.jaxpr.equation import is_float as is_float
from edbatch.cell.jaxpr.equation import is_operation as is_operation
from edbatch.cell.jaxpr.equation import literal_key as literal_key
from edbatch.cell.jaxpr.equation import literal_value as literal_value
from edbatch.cell.jaxpr.equation import name_of as name_of
from edbatch.cell.jaxpr.equation import new_variable as new_variable
from edbatch.cell.jaxpr.equation import num_bytes_of as num_bytes_of
from edbatch.cell.jaxpr.equation import rewire as rewire
from edbatch.cell.jaxpr.equation import shape_of as shape_of
from edbatch.cell.jaxpr.equation import size_of as size_of
from edbatch.cell.jaxpr.equation import variables as variables
from edbatch.cell.jaxpr.function_body import Body as Body
from edbatch.cell.jaxpr.function_body import argument_of as argument_of
from edbatch.cell.jaxpr.function_body import as_body as as_body
from edbatch.cell.jaxpr.function_body import as_function as as_function
from edbatch.cell.jaxpr.function_body import body_of as body_of
from edbatch.cell.jaxpr.function_body import called_body as called_body
from edbatch.cell.jaxpr.function_body import contains as contains
from edbatch.cell.jaxpr.function_body import inner_bodies as inner_bodies
from edbatch.cell.jaxpr.function_body import trace as trace
from edbatch.cell.jaxpr.identity import generator_of as generator_of
from edbatch.cell.jaxpr.identity import groups_text as groups_text
from edbatch.cell.jaxpr.identity import has_rule_of_jvp as has_rule_of_jvp
from edbatch.cell.jaxpr.identity import is_of_jax as is_of_jax
from edbatch.cell.jaxpr.identity import is_unspecified as is_unspecified
from edbatch.cell.jaxpr.identity import parameters_of as parameters_of
from edbatch.cell.jaxpr.identity import takes_symbolic_zeros as takes_symbolic_zeros
from edbatch.cell.jaxpr.identity import tangents_of as tangents_of
from edbatch.cell.jaxpr.identity import trace_context_of as trace_context_of
from edbatch.cell.jaxpr.identity import type_text as type_text
from edbatch.cell.jaxpr.internals import JaxprEqn as JaxprEqn
from edbatch.cell.jaxpr.internals import Literal as Literal
from edbatch.cell.jaxpr.internals import Var as Var
from edbatch.cell.jaxpr.operations import Cut as Cut
from edbatch.cell.jaxpr.operations import Dot as Dot
from edbatch.cell.jaxpr.operations import Lookup as Lookup
from edbatch.cell.jaxpr.operations import broadcast_dims as broadcast_dims
from edbatch.cell.jaxpr.operations import exponent_of as exponent_of
from edbatch.cell.jaxpr.operations import fills_with_a_number as fills_with_a_number
from edbatch.cell.jaxpr.operations import mantissa_bits as mantissa_bits
from edbatch.cell.jaxpr.operations import read_cuts as read_cuts
from edbatch.cell.jaxpr.operations import read_dot as read_dot
from edbatch.cell.jaxpr.operations import read_lookup as read_lookup
from edbatch.cell.jaxpr.operations import reduced_axes as reduced_axes
from edbatch.cell.jaxpr.own_constants import with_own_constants as with_own_constants
from edbatch.cell.jaxpr.own_primitives import Stored as Stored
from edbatch.cell.jaxpr.own_primitives import of_each_row as of_each_row
from edbatch.cell.jaxpr.own_primitives import (
    reverse_only_identity as reverse_only_identity,
)
from edbatch.cell.jaxpr.own_primitives import stored_primitive as stored_primitive
from edbatch.cell.jaxpr.tracing import first_of_traces as first_of_traces
from edbatch.cell.jaxpr.tracing import is_staging as is_staging
from edbatch.cell.jaxpr.tracing import is_tracing as is_tracing
from edbatch.cell.jaxpr.tracing import trace_state as trace_state
