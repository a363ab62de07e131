"""The system `exact`: one program per minibatch, compiled with its exact widths.

It is the best that XLA can do with these cells when it knows the graph: every width,
every output row and every operand row is a constant; consecutive rows are read as a
slice; nothing is padded. Its weakness is that it compiles again, for seconds, for every
minibatch. The compile time grows with the number of groups (nodes of one type and
level), so the system is left out of the comparison above `MOST_GROUPS` groups.

There is one arena per array kind. Three alternatives were all within the noise or
slower (tree-LSTM, CPU, hidden 128 and 256): one arena per state; one joint write of all
outputs of a level; no arenas, but concatenations of the levels that are read. XLA
copies the arena twice, at the lowest levels, which takes about 3% of the time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array

from edbatch.benchmark.staged_system import (
    StagedSystem,
    instance_results,
)
from edbatch.benchmark.staging import (
    ZERO_ROW,
    Stages,
    new_arenas,
    pack_cells,
    run_nodes,
    stage,
    take,
    write,
)
from edbatch.errors import UnsupportedError
from edbatch.graph import DataflowGraph, merge
from edbatch.measuring import half_squares

MOST_GROUPS = 160  # a chain of 240 took half a minute to compile


@dataclass(frozen=True, eq=False)
class ExactPlan:
    """The program of one minibatch.

    Attributes:
        graph: The minibatch.
        run: The jitted program, compiled on its first call.
        train: The jitted program of the loss and its gradient, likewise.
        pools: External inputs by array kind.
    """

    graph: DataflowGraph
    run: Callable[[Any, dict[int, Any]], tuple[Array, ...]]
    train: Callable[[Any, dict[int, Any]], tuple[Array, Any]]
    pools: dict[int, np.ndarray]


class Exact(StagedSystem):
    """See the module."""

    name = "exact"
    about = (
        "the whole minibatch jitted with its exact widths, the best that XLA can do"
        " when it knows the graph; compiles again for every minibatch"
    )

    def plan(self, recordings: Sequence[DataflowGraph]) -> ExactPlan:
        """Builds the program of the minibatch."""
        stages = stage(merge(recordings))
        if len(stages.groups) > MOST_GROUPS:
            raise UnsupportedError(
                f"its program would run {len(stages.groups)} groups of nodes, more than"
                f" {MOST_GROUPS}, and take minutes to compile for every minibatch"
            )
        run = _program(stages)
        train = jax.value_and_grad(
            lambda *inputs: half_squares(run(*inputs)), allow_int=True
        )
        return ExactPlan(stages.graph, jax.jit(run), jax.jit(train), stages.pools)

    def forward(self, plan: ExactPlan) -> tuple[Array, ...]:
        """Runs the program of the minibatch."""
        return plan.run(self.params, plan.pools)

    def train(self, plan: ExactPlan) -> tuple[Array, Any]:
        """Runs the gradient program of the minibatch."""
        return plan.train(self.params, plan.pools)

    def results(self, plan: ExactPlan, outcome: tuple[Array, ...]) -> list[Any]:
        """Returns the outputs per instance."""
        return instance_results(plan.graph, outcome)


def _program(stages: Stages) -> Callable[[Any, Any], tuple[Array, ...]]:
    graph = stages.graph
    value_row, sizes = assign_rows(stages)

    def run(params: Any, pools: Any) -> tuple[Array, ...]:
        arenas = new_arenas(graph.types, sizes)
        node_types = dict.fromkeys(group.node_type for group in stages.groups)
        cells = pack_cells(graph.types, node_types, params)
        packed = dict(zip(node_types, cells, strict=True))
        for group in stages.groups:
            outputs = run_nodes(
                graph.types,
                group.node_type,
                packed[group.node_type],
                arenas,
                pools,
                value_row[stages.operands(group)],
                stages.externals(group),
            )
            first = graph.value_start[group.nodes[0]]
            for leaf, rows in enumerate(outputs):
                kind = group.node_type.output_kinds[leaf]
                arenas = write(arenas, kind, int(value_row[first + leaf]), rows)
        return tuple(
            take(arenas[kind], value_row[values])
            for kind, values in graph.outputs.values()
        )

    return run


def assign_rows(
    stages: Stages, width_of: Callable[[int], int] = int
) -> tuple[np.ndarray, dict[int, int]]:
    """Assigns consecutive rows of its arena to each output of each group.

    Args:
        stages: The minibatch.
        width_of: Number of rows reserved for a group of n nodes.

    Returns:
        The row of each value, ``[V + 1] int32``, and the number of rows of each arena.
        The last entry is the zero row, so that index -1, a missing value, selects it.
    """
    graph = stages.graph
    value_row = np.full(graph.num_values + 1, ZERO_ROW, np.int32)
    sizes: dict[int, int] = {}
    for group in stages.groups:
        places = np.arange(len(group.nodes))
        for leaf, kind in enumerate(group.node_type.output_kinds):
            first = sizes.get(kind, ZERO_ROW + 1)
            value_row[graph.value_start[group.nodes] + leaf] = first + places
            sizes[kind] = first + width_of(len(places))
    return value_row, sizes
