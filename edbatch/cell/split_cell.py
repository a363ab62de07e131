"""A cell in two parts: what its external inputs alone decide, and the rest.

A recurrent cell multiplies an input, such as a word's vector, and a state that other
nodes computed. Only the state has to be waited for. So the products of external inputs,
and what follows from these and external inputs alone, can run ahead for all nodes of a
minibatch at once: one wide operation in place of many narrow ones.

What runs ahead hands on one vector per dtype, so that the rest reads one operand more.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import JaxprEqn, Var

from edbatch.cell.cell_graph import (
    CellGraph,
    Node,
    drop_dead,
    dtype_of,
    effects_of,
    find_parameter_only,
    shape_of,
    trace_cell,
    variables,
)
from edbatch.cell.derivatives import keeps_outputs_apart
from edbatch.cell.halves import as_function, is_view
from edbatch.graph.node_type import Aval, NodeType, input_specs
from edbatch.graph.type_table import TypeTable

_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})


@dataclass(frozen=True, eq=False)
class SplitCell:
    """A cell in two parts, each a function for one instance.

    Attributes:
        vectors: What is handed on: arrays of one axis, each of another dtype.
        parameters_read: Numbers that the products that run ahead read beside inputs.
    """

    vectors: tuple[Aval, ...]
    parameters_read: int
    _handed_on: tuple[tuple[Var, ...], ...] = field(repr=False)  # per vector
    _ahead: Callable[..., Sequence[Array]] = field(repr=False)
    _rest: Callable[..., Sequence[Array]] = field(repr=False)

    def ahead(
        self, params: Any, externals: Sequence[Array], masks: Sequence[Array]
    ) -> list[Array]:
        """Computes what external inputs alone decide.

        Args:
            params: The model's parameters.
            externals: One array per external group.
            masks: The masks of padded external inputs.

        Returns:
            One array per entry of `vectors`.
        """
        arrays = iter(self._ahead(*jax.tree.leaves((params, externals, masks))))
        return [
            jnp.concatenate([jnp.ravel(next(arrays)) for _ in group])
            for group in self._handed_on
        ]

    def rest(
        self,
        params: Any,
        operands: Sequence[Array],
        externals: Sequence[Array],
        masks: Sequence[Array],
    ) -> list[Array]:
        """Computes the cell's outputs.

        Args:
            params: The model's parameters.
            operands: One array per operand group, then what `ahead` returned.
            externals: One array per external group.
            masks: One array per padded argument.

        Returns:
            The arrays of the cell's output.
        """
        own = len(operands) - len(self.vectors)
        arrays = []
        for vector, group in zip(operands[own:], self._handed_on, strict=True):
            at = 0
            for var in group:
                size = math.prod(shape_of(var))
                arrays.append(vector[at : at + size].reshape(shape_of(var)))
                at += size
        inputs = jax.tree.leaves((params, operands[:own], externals, masks))
        return list(self._rest(*inputs, *arrays))


def split_cell(node_type: NodeType, types: TypeTable) -> SplitCell | None:
    """Splits the cell of a node type, if products can run ahead.

    Args:
        node_type: The type.
        types: The table that it is in.

    Returns:
        The parts; None if there is no product of external inputs, or no operand to
        wait for. Cells that take keys stay whole: without keys they are other cells.
        So do those whose parts on the way to different outputs must stay apart.
    """
    if not node_type.operand_kinds or node_type.takes_rng:
        return None
    template = node_type.template

    def function(params: Any, *inputs: Any) -> list[Any]:
        return jax.tree.leaves(template.call(node_type.function, params, *inputs))

    specs = input_specs(
        template, node_type.operand_kinds, node_type.external_kinds, types.avals
    )
    graph, _ = trace_cell(function, types.params_spec, specs)
    if keeps_outputs_apart(graph):
        return None
    first, last = len(specs[0]), len(specs[0]) + len(specs[1])
    externals, masks = graph.inputs[first:last], graph.inputs[last:]
    known_masks = [
        mask
        for mask, padding in zip(masks, template.paddings, strict=True)
        if padding.kind == "external"
    ]
    early, handed_on, parameters_read = _find(graph, (*externals, *known_masks))
    if not handed_on or not all(
        jnp.issubdtype(dtype_of(var), jnp.floating) for var in handed_on
    ):
        return None
    made = {id(node) for node in early if not set(node.outvars).isdisjoint(handed_on)}
    late = [node for node in graph.nodes if id(node) not in made]
    dtypes = dict.fromkeys(dtype_of(var) for var in handed_on)
    groups = tuple(
        tuple(var for var in handed_on if dtype_of(var) == dtype) for dtype in dtypes
    )
    flat = tuple(var for group in groups for var in group)
    return SplitCell(
        vectors=tuple(
            Aval((sum(math.prod(shape_of(var)) for var in group),), dtype)
            for dtype, group in zip(dtypes, groups, strict=True)
        ),
        parameters_read=parameters_read,
        _handed_on=groups,
        _ahead=as_function(
            graph,
            (*graph.parameters, *externals, *known_masks),
            drop_dead(early, flat),
            flat,
        ),
        _rest=as_function(
            graph,
            (*graph.parameters, *graph.inputs, *flat),
            drop_dead(late, graph.outputs),
            graph.outputs,
        ),
    )


def _find(
    graph: CellGraph, inputs: Sequence[Var]
) -> tuple[list[Node], tuple[Var, ...], int]:
    """Finds what runs ahead, what of it the rest reads, and `parameters_read`."""
    packed, free = find_parameter_only(graph)
    known = {*packed, *free, *inputs}
    of_inputs, of_products = {*inputs}, set[Var]()
    early = []
    parameters_read = 0
    for node in graph.nodes:
        read = set(variables(node.invars))
        if effects_of(node) or not read <= known:
            continue
        early.append(node)
        known.update(node.outvars)
        if of_inputs.isdisjoint(read):
            continue
        if _is_product(node):
            others = read - of_inputs
            parameters_read += sum(math.prod(shape_of(var)) for var in others)
        of_inputs.update(node.outvars)
        if _is_product(node) or not of_products.isdisjoint(read):
            of_products.update(node.outvars)
    is_early = {id(node) for node in early}
    late = [node for node in graph.nodes if id(node) not in is_early]
    read = {var for node in late for var in variables(node.invars)}
    read.update(variables(graph.outputs))
    # A view of what is handed on is made where it is read: it may be larger.
    for node in reversed(early):
        if is_view(node) and not read.isdisjoint(node.outvars):
            read.difference_update(node.outvars)
            read.update(variables(node.invars))
    handed_on = [var for node in early for var in node.outvars]
    handed_on = [var for var in handed_on if var in read and var in of_products]
    return early, tuple(handed_on), parameters_read


def _is_product(node: Node) -> bool:
    return isinstance(node, JaxprEqn) and node.primitive.name in _PRODUCTS
