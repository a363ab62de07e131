"""Checks a layout by running it on the indices of values instead of their contents."""

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.memory_planner.layout import ZERO_ROW, Layout

_NO_VALUE = -1


def check_layout(layout: Layout, graph: DataflowGraph) -> None:
    """Checks that every value is still in its row when it is read.

    Chunks are executed one after the other on arenas that hold the indices of values.
    At the end all values must remain, for the gradient; with ``layout.reuse``, only
    those that the model returns.

    Args:
        layout: The layout.
        graph: The graph that it was made for.

    Raises:
        AssertionError: Chunks do not cover each node once, or have more nodes than
            rows; a row does not hold its value when it is read, or at the end; the
            outputs of a chunk are not consecutive; a chunk writes the zero row; a slice
            or a chunk's outputs extend beyond the arena; or ``in_place`` is wrong.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> from edbatch.memory_planner import plan_layout
        >>> from edbatch.policies import Greedy
        >>> graph = batched.graph([1.0, 5.0])
        >>> layout = plan_layout(graph, Greedy().schedule(graph.structure), eb.Sizes())
        >>> check_layout(layout, graph)  # raises where two values overlap
    """
    _check_chunks(layout, graph)
    types = graph.types.types
    arenas = [np.full(rows, _NO_VALUE) for rows in layout.arena_rows]
    for c, (start, size, width) in enumerate(
        zip(layout.chunk_start, layout.chunk_size, layout.chunk_width, strict=True)
    ):
        nodes = layout.order[start : start + size]
        node_type = types[graph.node_type[nodes[0]]]
        stacked = {
            slot
            for group in node_type.template.operands
            if group.stacked
            for slot in group.slots
        }
        for slot, kind in enumerate(node_type.operand_kinds):
            values = graph.operands[graph.operand_start[nodes] + slot]
            rows = layout.value_row[values]
            there = values >= 0
            assert (arenas[kind][rows[there]] == values[there]).all(), (
                f"chunk {c} reads its operands while their rows hold them"
            )
            is_slice = bool(there.all() and (np.diff(rows) == 1).all())
            expected = is_slice and slot not in stacked
            assert layout.in_place[c, slot] == expected, "in_place tells the truth"
            if expected:
                assert rows[0] + width <= len(arenas[kind]), "slices stay in the arena"
        assert not layout.in_place[c, len(node_type.operand_kinds) :].any(), (
            "in_place tells the truth"
        )
        for leaf, kind in enumerate(node_type.output_kinds):
            values = graph.value_start[nodes] + leaf
            rows = layout.value_row[values]
            assert (np.diff(rows) == 1).all(), "a chunk's outputs are consecutive"
            assert rows[0] > ZERO_ROW, "the zero row is never written"
            assert rows[0] + width <= len(arenas[kind]), "rows stay in the arena"
            arenas[kind][rows[0] : rows[0] + width] = _NO_VALUE
            arenas[kind][rows] = values
    _check_what_is_left(layout, graph, arenas)


def _check_chunks(layout: Layout, graph: DataflowGraph) -> None:
    assert sorted(layout.order) == list(range(graph.num_nodes)), "each node runs once"
    covered = [
        np.arange(start, start + size)
        for start, size in zip(layout.chunk_start, layout.chunk_size, strict=True)
    ]
    positions = np.concatenate([*covered, np.zeros(0, int)])
    assert (positions == np.arange(graph.num_nodes)).all(), "chunks cover the order"
    assert (layout.chunk_size <= layout.chunk_width).all(), "a chunk holds its nodes"


def _check_what_is_left(
    layout: Layout, graph: DataflowGraph, arenas: list[np.ndarray]
) -> None:
    is_kept = np.full(graph.num_values, not layout.reuse)
    for _, values in graph.outputs.values():
        is_kept[values] = True
    for v in range(graph.num_nodes):
        kinds = graph.types.types[graph.node_type[v]].output_kinds
        for value, kind in enumerate(kinds, start=graph.value_start[v]):
            held = arenas[kind][layout.value_row[value]]
            assert held == value or not is_kept[value], f"value {value} is kept"
