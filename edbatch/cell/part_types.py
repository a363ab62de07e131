"""The types of a divided type's parts: the hoisted part, and the rest that reads it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from edbatch.cell.hoisted_cell import HoistedCell
from edbatch.graph.node_type import CallTemplate, NodeType, Padding, Slots


def hoisted_part(
    node_type: NodeType, cell: HoistedCell, kinds: tuple[int, ...], params: Any
) -> NodeType:
    """Makes the type of the hoisted part.

    Args:
        node_type: The divided type.
        cell: The two parts of its cell.
        kinds: Array kinds of the arrays that the hoisted part hands on.
        params: The placeholder for parameters; None if there are none.
    """
    template = node_type.template
    paddings = [each for each in template.paddings if each.kind == "external"]

    def hoisted(params: Any, externals: Any, **masks: Any) -> Any:
        own = [masks[each.mask] for each in paddings]
        return cell.precompute(params, externals, own)

    return replace(
        node_type,
        key=replace(node_type.key, cell=f"{node_type.key.cell}.hoisted", arity=0),
        function=hoisted,
        template=call_template(params, (), template.externals, paddings),
        operand_kinds=(),
        output_kinds=kinds,
        output_tree=jax.tree.structure([0] * len(kinds)),
    )


def rest_part(
    node_type: NodeType, cell: HoistedCell, kinds: tuple[int, ...], params: Any
) -> NodeType:
    """Makes the type of the rest, with an additional operand per hoisted result."""
    template = node_type.template
    first = len(node_type.operand_kinds)
    added = tuple(Slots((first + k,)) for k in range(len(kinds)))

    def rest(params: Any, operands: Any, externals: Any, **masks: Any) -> Any:
        own = [masks[each.mask] for each in template.paddings]
        return cell.rest(params, operands, externals, own)

    operands = (*template.operands, *added)
    return replace(
        node_type,
        function=rest,
        template=call_template(params, operands, template.externals, template.paddings),
        operand_kinds=(*node_type.operand_kinds, *kinds),
    )


def call_template(
    params: Any,
    operands: Sequence[Slots],
    externals: Sequence[Slots],
    paddings: Sequence[Padding],
) -> CallTemplate:
    """Makes the template of a part's calls: parameters, operands, external inputs.

    Args:
        params: The placeholder for parameters; None if there are none.
        operands: The slots of each operand; without any, the list is omitted.
        externals: The slots of each external input.
        paddings: The padded lists among the arguments.
    """
    leaves = [("static", None) if params is None else ("parameter", params)]
    leaves += [("operand", k) for k in range(len(operands))]
    leaves += [("external", k) for k in range(len(externals))]
    lists = [[0] * len(operands)] if operands else []
    arguments = (0, *lists, [0] * len(externals))
    return CallTemplate(
        jax.tree.structure((arguments, {})),
        tuple(leaves),
        tuple(operands),
        tuple(externals),
        tuple(paddings),
    )
