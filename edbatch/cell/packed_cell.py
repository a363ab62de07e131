"""Entry point of packing: merges a cell's products where that pays.

Gain on 64 instances at hidden size 32, 128 and 256 (`experiments/packing_speed.py`):
the forward pass takes 0.82, 0.82 and 0.93 times as long for taggers, and 0.87, 0.96 and
0.98 times for tree-LSTMs, the same as with matrices concatenated by hand.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from jax import Array

from edbatch.cell.binding_time import BindingTime, binding_times, split
from edbatch.cell.cell_graph import CellGraph, trace_cell
from edbatch.cell.derivatives import keeps_outputs_apart
from edbatch.cell.jaxpr import num_bytes_of
from edbatch.cell.join_slices import join_slices
from edbatch.cell.lowering import lower
from edbatch.cell.push_slices import push_slices
from edbatch.cell.rows_of import rows_of
from edbatch.cell.simplify import simplify
from edbatch.cell.summary import CellSummary, summarize
from edbatch.cell.type_call import traced_type
from edbatch.cell.wide_product import widen_products
from edbatch.errors import PlanError
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable
from edbatch.target import Target, choose_target

# Fixed cost of a product, in addition to the elements that it copies and writes, in
# elements per batch row. Measured on a CPU core over widths 8 to 512 and hidden sizes
# 32 to 256: concatenating two inputs pays off from about this value on.
OVERHEAD = 64


@dataclass(frozen=True, eq=False)
class PackedCell:
    """A cell in a parameter-time and a run-time partition.

    Attributes:
        before: The operations of the cell as written.
        after: The operations of `run`.

    Example:
        >>> import edbatch as eb
        >>> import numpy as np
        >>> from edbatch.cell import pack_type
        >>> batched = eb.batch(eb.cell(lambda params, x: params @ x), params=np.eye(2))
        >>> types = batched.graph([np.ones(2, np.float32)]).types
        >>> packed = pack_type(types.types[0], types)
        >>> packed.before.num_products, packed.after.num_products
        (1, 1)
    """

    before: CellSummary
    after: CellSummary
    _pack: Callable[..., Any] = field(repr=False)
    _run: Callable[..., Any] = field(repr=False)
    _output_tree: Any = field(repr=False)

    def __repr__(self) -> str:
        """Summary in one line."""
        before, after = self.before.num_products, self.after.num_products
        return f"<PackedCell: {before} products run as {after}>"

    @cached_property
    def rows(self) -> Any:
        """As `CellProgram.rows`."""
        return rows_of(self.run)

    def pack(self, params: Any) -> tuple[Array, ...]:
        """Runs the parameter-time partition; once per call, outside loops.

        Args:
            params: The parameters.

        Returns:
            The arrays that `run` reads: merged parameters, values computed from
            parameters, and parameters that are read unchanged. Pure JAX.
        """
        return tuple(self._pack(*jax.tree.leaves(params)))

    def run(self, packed: tuple[Array, ...], *inputs: Any) -> Any:
        """Runs the cell.

        Args:
            packed: The result of `pack`.
            *inputs: The cell's other arguments, for one instance; pure JAX, so
                `jax.vmap` runs many.

        Returns:
            The cell's output, equal up to floating-point rounding.
        """
        results = self._run(*packed, *jax.tree.leaves(inputs))
        return jax.tree.unflatten(self._output_tree, results)


def pack_cell(
    function: Callable[..., Any],
    params_spec: Any,
    *input_specs: Any,
    overhead: int = OVERHEAD,
    target: Target | None = None,
) -> PackedCell:
    """Merges a cell's products.

    Products that share an input become one wide product. Products that are summed
    become one product of their concatenated inputs. Each merge is made only if it saves
    more than its copies cost. Values that depend on parameters only are computed in
    `PackedCell.pack`. Other equations stay as they are, including effects, control flow
    and differentiation rules.

    Args:
        function: ``function(params, *inputs)`` for one instance.
        params_spec: The parameters, with ``jax.ShapeDtypeStruct`` leaves.
        *input_specs: The inputs, likewise.
        overhead: Fixed cost of a product, in addition to the elements that it copies
            and writes, in elements per instance. A higher value merges more.
        target: The kind of device that runs it; None for `choose_target`.

    Returns:
        The packed cell.

    Raises:
        PlanError: The overhead is negative.

    Example:
        >>> import jax.numpy as jnp
        >>> def gates(params, x):
        ...     return jnp.tanh(x @ params["W"]), jax.nn.sigmoid(x @ params["U"])
        >>> W = jnp.eye(3)
        >>> spec = jax.ShapeDtypeStruct((3, 3), "float32")
        >>> x = jnp.arange(3.0)
        >>> packed = pack_cell(gates, {"W": spec, "U": spec}, jax.eval_shape(lambda: x))
        >>> packed.before.num_products, packed.after.num_products
        (2, 1)
        >>> one, two = packed.run(packed.pack({"W": W, "U": 2 * W}), x)
        >>> [round(float(each), 3) for each in one]
        [0.0, 0.762, 0.964]
    """
    if overhead < 0:
        raise PlanError(
            f"overhead must be 0 elements or more but is {overhead}; leave it out for"
            f" {OVERHEAD}"
        )
    traced, output_tree = trace_cell(function, params_spec, input_specs)
    return _pack(traced, output_tree, overhead, target)


def _pack(
    traced: CellGraph, output_tree: Any, overhead: int, target: Target | None
) -> PackedCell:
    """Merges a cell's products."""
    target = choose_target() if target is None else target
    graph = _merge(simplify(traced), overhead, target)
    parts = split(graph, BindingTime.PARAM, binding_times(graph))
    num_bytes = sum(num_bytes_of(var) for var in parts.computed)
    return PackedCell(
        before=summarize(traced.nodes),
        after=summarize(parts.run_time, len(parts.computed), num_bytes),
        _pack=parts.precomputed_function(graph.parameters, parts.handed_on),
        _run=parts.run_time_function((*parts.handed_on, *graph.inputs)),
        _output_tree=output_tree,
    )


def pack_type(
    node_type: NodeType, types: TypeTable, *, target: Target | None = None
) -> PackedCell:
    """Packs the cell of a node type.

    Args:
        node_type: The type.
        types: The type's table.
        target: As for `pack_cell`.

    Returns:
        The packed cell. Its inputs are operands, external inputs and masks, as for
        `CallTemplate.call`; it returns the list of the output's arrays.

    Example:
        >>> import edbatch as eb
        >>> import numpy as np
        >>> batched = eb.batch(eb.cell(lambda params, x: params @ x), params=np.eye(2))
        >>> types = batched.graph([np.ones(2, np.float32)]).types
        >>> pack_type(types.types[0], types).after.num_products
        1
    """
    graph, _ = traced_type(node_type, types)
    return pack_graph(graph, target)


def pack_graph(graph: CellGraph, target: Target | None = None) -> PackedCell:
    """Packs a traced cell, as `pack_type` does."""
    output_tree = jax.tree.structure([0] * len(graph.outputs))
    return _pack(graph, output_tree, OVERHEAD, target)


def _merge(graph: CellGraph, overhead: int, target: Target) -> CellGraph:
    """Merges products where it pays; the result consists of equations only."""
    wide, cost = widen_products(graph, overhead)
    if not keeps_outputs_apart(graph):
        pushed = push_slices(graph)
        if pushed is not graph:
            other, other_cost = widen_products(simplify(pushed), overhead)
            wide = other if other_cost < cost else wide
    return join_slices(lower(wide, target))
