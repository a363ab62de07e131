"""Finds cells that may not terminate on values of other nodes.

The rows after a slice belong to other nodes, and the padding rows of a chunk read them.
A `jax.lax.while_loop` runs until it has ended for all rows, so a foreign value for
which it never ends would hang the program. The padding rows of such cells read the last
node's row instead.
"""

from collections.abc import Iterable

from edbatch.cell.binding_time import BindingTime, binding_times
from edbatch.cell.jaxpr import (
    JaxprEqn,
    Var,
    equations_of,
    inner_bodies,
    read_while,
    variables,
)
from edbatch.cell.type_call import traced_type
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable


def may_not_end(node_type: NodeType, types: TypeTable) -> bool:
    """Returns whether a loop in a type's cell may never end on other nodes' values.

    Args:
        node_type: The type.
        types: The type's table.

    Returns:
        Whether the cell has a ``while_loop`` whose condition may depend on the batch
        row. Loops inside other control flow count, whatever they depend on.
    """

    def make() -> bool:
        graph, _ = traced_type(node_type, types)
        times = binding_times(graph)
        of_row = {var for var, time in times.items() if time > BindingTime.PARAM}
        return any(_depends(each, of_row) for each in equations_of(graph.nodes))

    return types.derived((may_not_end, node_type), make)


def _depends(eqn: JaxprEqn, of_row: set[Var]) -> bool:
    if not of_row.intersection(variables(eqn.invars)):
        return False
    loop = read_while(eqn)
    if loop is None:
        return _contains_while(eqn)
    first, start = loop.condition_consts, loop.condition_consts + loop.body_consts
    known = [isinstance(each, Var) and each in of_row for each in eqn.invars]
    carried = known[start:]
    while True:
        after = _reached(
            loop.body.inputs,
            [*known[first:start], *carried],
            loop.body.equations,
            loop.body.outputs,
        )
        joined = [one or two for one, two in zip(carried, after, strict=True)]
        if joined == carried:
            break
        carried = joined
    inputs = [*known[:first], *carried]
    condition = loop.condition
    [ends] = _reached(condition.inputs, inputs, condition.equations, condition.outputs)
    nested = any(map(_contains_while, loop.body.equations))
    return ends or nested


def _reached(
    inputs: Iterable[Var],
    depends: Iterable[bool],
    equations: Iterable[JaxprEqn],
    outputs: Iterable[object],
) -> list[bool]:
    """Marks the outputs of a loop's body or condition that depend on marked inputs."""
    found = {var for var, own in zip(inputs, depends, strict=True) if own}
    for eqn in equations:
        if found.intersection(variables(eqn.invars)):
            found.update(eqn.outvars)
    return [isinstance(each, Var) and each in found for each in outputs]


def _contains_while(eqn: JaxprEqn) -> bool:
    return read_while(eqn) is not None or any(
        _contains_while(each) for body in inner_bodies(eqn) for each in body.equations
    )
