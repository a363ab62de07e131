"""The cell of a type as a function of flat arrays, to be traced."""

from collections.abc import Callable
from typing import Any

import jax

from edbatch.graph.node_type import NodeType, input_specs
from edbatch.graph.type_table import TypeTable

Specs = tuple[list[Any], list[Any], list[Any]]  # operands, external inputs, masks


def type_call(
    node_type: NodeType, types: TypeTable
) -> tuple[Callable[..., list[Any]], Specs]:
    """Returns the cell of a type, and what it takes beside the parameters.

    Args:
        node_type: The type.
        types: The table that it is in.

    Returns:
        ``function(params, operands, externals, masks)`` for one batch row, which
        returns the list of the output's arrays; and the arrays that it takes, as
        ``jax.ShapeDtypeStruct``.
    """

    def function(params: Any, *inputs: Any) -> list[Any]:
        output = node_type.template.call(node_type.function, params, *inputs)
        return jax.tree.leaves(output)

    specs = input_specs(
        node_type.template,
        node_type.operand_kinds,
        node_type.external_kinds,
        types.avals,
    )
    return function, specs
