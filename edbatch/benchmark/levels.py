"""The system `levels`: one jitted call per level and type, dispatched from Python.

Forward time relative to `exact`, 64 trees, hidden 128 and 256: 1.73 and 1.68, compared
with 1.16 and 1.05 for edbatch (docs/results.md).

Widths are padded to powers of two, so that a call is compiled once per type and width.
This is its best setting: leaves and classifier run in one wide call each; the arenas
are donated, so that a call writes in place; all integers of a call are in one array.
Its weakness is the dispatch from Python at every level, and padding of up to half the
rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from edbatch.benchmark.exact import assign_rows
from edbatch.benchmark.staged_system import (
    StagedSystem,
    instance_results,
)
from edbatch.benchmark.staging import (
    Arenas,
    new_arenas,
    next_power,
    pack_cells,
    pad_to_power,
    run_nodes,
    stage,
    take,
    write,
)
from edbatch.cell.program import Packed
from edbatch.graph import DataflowGraph, NodeType, TypeTable, merge
from edbatch.measuring import half_squares


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a jitted cell.

    Attributes:
        node_type: The type.
        width: Number of rows including padding, ``w``.
        integers: The first row of each output, then ``w`` rows per operand slot, then
            ``w`` rows per external slot; int32.
    """

    node_type: NodeType
    width: int
    integers: np.ndarray


@dataclass(frozen=True, eq=False)
class LevelsPlan:
    """The calls of a minibatch.

    Attributes:
        graph: The minibatch.
        sizes: (array kind, number of rows) of each arena.
        pools: External inputs by array kind, padded.
        calls: The calls in execution order.
        kinds: Array kind of each output of the model.
        columns: Arena rows of each output of the model, padded.
    """

    graph: DataflowGraph
    sizes: tuple[tuple[int, int], ...]
    pools: dict[int, np.ndarray]
    calls: list[Call]
    kinds: tuple[int, ...]
    columns: list[np.ndarray]


class Levels(StagedSystem):
    """See the module."""

    name = "levels"
    about = (
        "one jitted call per level, widths padded to powers of two; pays dispatch at"
        " every level, and padding"
    )

    def __init__(self, model: Callable[[Any, Any], Any], params: Any) -> None:
        super().__init__(model, params)
        self._sizes: dict[int, int] = {}
        self._allocate = jax.jit(self._new_arenas, static_argnums=0)
        self._pack = jax.jit(partial(pack_cells, self._types), static_argnums=0)
        call = partial(_call, self._types)
        self._call = jax.jit(call, static_argnums=(0, 1), donate_argnums=3)
        self._call_kept = jax.jit(call, static_argnums=(0, 1))
        self._loss = jax.jit(half_squares)
        self._gather = jax.jit(_gather, static_argnums=0)

    def plan(self, recordings: Sequence[DataflowGraph]) -> LevelsPlan:
        """Computes the integers of every call."""
        stages = stage(merge(recordings))
        graph = stages.graph
        value_row, sizes = assign_rows(stages, next_power)
        for kind, size in sizes.items():  # sizes only grow, so calls compile once
            self._sizes[kind] = max(self._sizes.get(kind, 0), next_power(size))
        calls = []
        for group in stages.groups:
            n, width = len(group.nodes), next_power(len(group.nodes))
            rows = np.concatenate(
                [value_row[stages.operands(group)], stages.externals(group)]
            )
            padded = np.minimum(np.arange(width), n - 1)  # padding repeats the last row
            outputs = np.arange(len(group.node_type.output_kinds))
            first = value_row[graph.value_start[group.nodes[0]] + outputs]
            integers = np.concatenate([first, rows[:, padded].ravel()])
            calls.append(Call(group.node_type, width, integers))
        columns = graph.outputs.values()
        return LevelsPlan(
            graph,
            tuple(sorted(self._sizes.items())),
            {kind: pad_to_power(pool) for kind, pool in stages.pools.items()},
            calls,
            tuple(kind for kind, _ in columns),
            [pad_to_power(value_row[values]) for _, values in columns],
        )

    def forward(self, plan: LevelsPlan) -> tuple[Array, ...]:
        """Calls the jitted cells in order."""
        return self._forward(self.params, plan, self._call)

    def train(self, plan: LevelsPlan) -> tuple[Array, Any]:
        """Differentiates through the calls, without donating the arenas."""

        def loss(params: Any) -> Array:
            return self._loss(self._forward(params, plan, self._call_kept))

        return jax.value_and_grad(loss, allow_int=True)(self.params)

    def _forward(
        self, params: Any, plan: LevelsPlan, run: Callable[..., Arenas]
    ) -> tuple[Array, ...]:
        arenas = self._allocate(plan.sizes)
        pools = jax.device_put(plan.pools)
        node_types = tuple(dict.fromkeys(call.node_type for call in plan.calls))
        cells = self._pack(node_types, params)
        packed = dict(zip(node_types, cells, strict=True))
        for call in plan.calls:
            arenas = run(
                call.node_type,
                call.width,
                packed[call.node_type],
                arenas,
                pools,
                call.integers,
            )
        return self._gather(plan.kinds, plan.columns, arenas)

    def results(self, plan: LevelsPlan, outcome: tuple[Array, ...]) -> list[Any]:
        """Returns the outputs per instance."""
        return instance_results(plan.graph, outcome)

    def _new_arenas(self, sizes: tuple[tuple[int, int], ...]) -> Arenas:
        return new_arenas(self._types, dict(sizes))


def _call(
    types: TypeTable,
    node_type: NodeType,
    width: int,
    packed: Packed,
    arenas: Arenas,
    pools: Arenas,
    integers: Array,
) -> Arenas:
    outputs = len(node_type.output_kinds)
    rows = integers[outputs:].reshape(-1, width)
    operands = len(node_type.operand_kinds)
    found = run_nodes(
        types, node_type, packed, arenas, pools, rows[:operands], rows[operands:]
    )
    for leaf, kind in enumerate(node_type.output_kinds):
        arenas = write(arenas, kind, integers[leaf], found[leaf])
    return arenas


def _gather(
    kinds: tuple[int, ...], columns: list[Array], arenas: Arenas
) -> tuple[Array, ...]:
    return tuple(
        take(arenas[kind], rows) for kind, rows in zip(kinds, columns, strict=True)
    )
