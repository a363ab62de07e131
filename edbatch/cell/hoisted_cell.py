"""A cell whose products of external inputs are hoisted out of it.

A recurrent cell multiplies an external input, such as a word vector, and a state that
other nodes compute. Only the state has to be waited for. So the products of external
inputs, and values computed from these products and external inputs only, can be
precomputed for all nodes of a minibatch at once: one wide operation instead of many
narrow ones.

On lattice-lstm at hidden size 256 the forward pass takes 0.86 times as long (see
`docs/results-memory.md`). The hoisted part passes on one vector per dtype, which the
rest of the cell reads as an additional operand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.cell.binding_time import BindingTime, Times, binding_times, split
from edbatch.cell.cell_graph import CellGraph, Node
from edbatch.cell.derivatives import keeps_outputs_apart
from edbatch.cell.jaxpr import Var, dtype_of, is_operation, shape_of, size_of, variables
from edbatch.cell.primitives import PRODUCTS
from edbatch.cell.type_call import traced_type
from edbatch.graph.node_type import Aval, NodeType
from edbatch.graph.type_table import TypeTable


@dataclass(frozen=True, eq=False)
class HoistedCell:
    """The hoisted part of a cell and the rest, each a function for one instance.

    Attributes:
        vectors: The one-dimensional arrays passed to the rest, one per dtype.
        parameters_read: Number of elements of parameters and constants that the
            hoisted products read.

    Example:
        >>> import edbatch as eb
        >>> import numpy as np
        >>> from edbatch.cell import hoisted_cell
        >>> @eb.cell
        ... def read(params, state, x):
        ...     return params["W"] @ state + params["U"] @ x
        >>> def model(params, words):
        ...     state = np.zeros(2, np.float32)
        ...     for word in words:
        ...         state = read(params, state, word)
        ...     return state
        >>> batched = eb.batch(model, params={"W": np.eye(2), "U": np.eye(2)})
        >>> types = batched.graph([[np.ones(2, np.float32)] * 2]).types
        >>> isinstance(hoisted_cell(types.types[-1], types), HoistedCell)
        True
    """

    vectors: tuple[Aval, ...]
    parameters_read: int
    _handed_on: tuple[tuple[Var, ...], ...] = field(repr=False)  # per vector
    _precompute: Callable[..., Sequence[Array]] = field(repr=False)
    _rest: Callable[..., Sequence[Array]] = field(repr=False)

    def __repr__(self) -> str:
        """Summary in one line."""
        vectors = ", ".join(map(str, self.vectors))
        return f"<HoistedCell that passes on {vectors}>"

    def precompute(
        self, params: Any, externals: Sequence[Array], masks: Sequence[Array]
    ) -> list[Array]:
        """Computes the hoisted part.

        Args:
            params: The model's parameters.
            externals: One array per external group.
            masks: The masks of padded external inputs.

        Returns:
            One array per entry of `vectors`.
        """
        arrays = iter(self._precompute(*jax.tree.leaves((params, externals, masks))))
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
            operands: One array per operand group, then the result of `precompute`.
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
                size = size_of(var)
                arrays.append(vector[at : at + size].reshape(shape_of(var)))
                at += size
        inputs = jax.tree.leaves((params, operands[:own], externals, masks))
        return list(self._rest(*inputs, *arrays))


def hoisted_cell(node_type: NodeType, types: TypeTable) -> HoistedCell | None:
    """Splits the cell of a node type if it has products that can be hoisted.

    Args:
        node_type: The type.
        types: The type's table.

    Returns:
        The parts; None if there is no product of external inputs, or no operand to
        wait for. Cells that take keys are not split, because a program may run them
        without keys (`NodeType.without_rng`), and the parts would be different then.
        Neither are cells whose outputs must be kept apart (`keeps_outputs_apart`).

    Example:
        >>> import edbatch as eb
        >>> import numpy as np
        >>> @eb.cell
        ... def read(params, state, x):
        ...     return params["W"] @ state + params["U"] @ x
        >>> def model(params, words):
        ...     state = np.zeros(2, np.float32)
        ...     for word in words:
        ...         state = read(params, state, word)
        ...     return state
        >>> batched = eb.batch(model, params={"W": np.eye(2), "U": np.eye(2)})
        >>> types = batched.graph([[np.ones(2, np.float32)] * 2]).types
        >>> split = hoisted_cell(types.types[-1], types)  # params["U"] @ x is hoisted
        >>> [each.shape for each in split.vectors]
        [(2,)]
    """
    if not node_type.operand_kinds or node_type.takes_rng:
        return None
    template = node_type.template

    graph, specs = traced_type(node_type, types)
    if keeps_outputs_apart(graph):
        return None
    first, last = len(specs[0]), len(specs[0]) + len(specs[1])
    externals, masks = graph.inputs[first:last], graph.inputs[last:]
    known_masks = [
        mask
        for mask, padding in zip(masks, template.paddings, strict=True)
        if padding.kind == "external"
    ]
    inputs = (*externals, *known_masks)
    times = binding_times(graph, inputs)
    of_products, parameters_read = _products_of_inputs(graph, times)
    parts = split(graph, BindingTime.INPUT, times, worth=of_products.__contains__)
    handed_on = parts.computed
    if not handed_on or not all(
        jnp.issubdtype(dtype_of(var), jnp.floating) for var in handed_on
    ):
        return None
    dtypes = dict.fromkeys(dtype_of(var) for var in handed_on)
    groups = tuple(
        tuple(var for var in handed_on if dtype_of(var) == dtype) for dtype in dtypes
    )
    flat = tuple(var for group in groups for var in group)
    return HoistedCell(
        vectors=tuple(
            Aval((sum(map(size_of, group)),), dtype)
            for dtype, group in zip(dtypes, groups, strict=True)
        ),
        parameters_read=parameters_read,
        _handed_on=groups,
        _precompute=parts.precomputed_function((*graph.parameters, *inputs), flat),
        _rest=parts.run_time_function((*graph.parameters, *graph.inputs, *flat)),
    )


def _products_of_inputs(graph: CellGraph, times: Times) -> tuple[set[Var], int]:
    """Variables computed from products of external inputs; and `parameters_read`."""
    found: set[Var] = set()
    parameters_read = 0
    for node in graph.nodes:
        if not all(times[var] == BindingTime.INPUT for var in node.outvars):
            continue
        read = set(variables(node.invars))
        if _is_product(node):
            others = [var for var in read if times[var] < BindingTime.INPUT]
            parameters_read += sum(map(size_of, others))
        if _is_product(node) or not found.isdisjoint(read):
            found.update(node.outvars)
    return found, parameters_read


def _is_product(node: Node) -> bool:
    return is_operation(node, PRODUCTS)
