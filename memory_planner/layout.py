"""Layouts: the row in which each value lives.

Values live in arenas, one arena per array kind (shape and dtype), one row per value. A
batch's outputs have consecutive rows, in the batch's own order (see `rows`).

In *schedule order*, batches follow each other, and nodes keep the order of the
schedule, which is the order in which their last operands are computed. This is the
cheapest layout, linear in the number of values, and is used where another layout gains
nothing. The *aligned* layout reorders the nodes within each batch, and the blocks of
rows of the batches, so that most operands are read in place (see `alignment`).

Row 0 of every arena is zero and is read for missing operands of padded lists.
"""

from dataclasses import dataclass, replace

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import check_rows
from edbatch.kernel import kernel
from edbatch.memory_planner.alignment_search import best_alignment
from edbatch.memory_planner.planner import LAYOUTS, default_effort
from edbatch.memory_planner.problem import (
    LayoutProblem,
    cut_batches,
    cuts_of_types,
    layout_tables,
    make_problem,
)
from edbatch.memory_planner.reuse import find_outputs, place_with_reuse
from edbatch.memory_planner.rows import find_in_place, place_blocks
from edbatch.memory_planner.sizes import Sizes, Widths
from edbatch.schedule.schedule import Schedule

ZERO_ROW = 0  # the row of each arena and pool that is zero


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows of ``V`` values of ``K`` kinds; ``N`` nodes in ``S`` batches, ``C`` chunks.

    Attributes:
        order: Nodes in the order in which they run.
        batch_start: First position in ``order`` of each batch, and the end.
        batch_type: Type of each batch.
        chunk_start: First position in ``order`` of each chunk.
        chunk_size: Nodes in each chunk.
        chunk_width: Rows that each chunk computes, at least its size.
        value_row: Row of each value in its kind's arena.
        arena_rows: Rows used in each kind's arena, including the zero row. A full-width
            slice that begins at a chunk's in-place operands stays within the arena.
        in_place: Whether the operands in a slot of a chunk are one contiguous slice of
            an arena, in the chunk's own order. False for slots that a type does not
            have, and for slots of padded lists, which are stacked.
        reuse: Whether values are overwritten after their last read.

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
        >>> layout.chunk_size.tolist(), layout.value_row.tolist()
        ([2, 2], [1, 5, 2, 6])
    """

    order: np.ndarray  # [N] int32
    batch_start: np.ndarray  # [S + 1] int32
    batch_type: np.ndarray  # [S] int32
    chunk_start: np.ndarray  # [C] int32
    chunk_size: np.ndarray  # [C] int32
    chunk_width: np.ndarray  # [C] int32
    value_row: np.ndarray  # [V] int32
    arena_rows: np.ndarray  # [K] int64
    in_place: np.ndarray  # [C, most slots] bool
    reuse: bool = False

    def __repr__(self) -> str:
        """Summary in one line."""
        chunks, batches = len(self.chunk_start), len(self.batch_type)
        return f"<Layout: {chunks} chunks of {batches} batches>"


def plan_layout(
    graph: DataflowGraph,
    schedule: Schedule,
    sizes: Sizes,
    widths: tuple[Widths, ...] | None = None,
    overheads: tuple[float, ...] | None = None,
    *,
    method: str = "schedule",
    aligned: np.ndarray | None = None,
    reuse: bool = False,
    effort: int | None = None,
) -> Layout:
    """Lays out a scheduled graph.

    Args:
        graph: The graph.
        schedule: Its schedule.
        sizes: Widths of chunks.
        widths: The widths that each type has; all of ``sizes`` if None.
        overheads: Cost of one more chunk of each type, in rows; the overhead of
            ``sizes`` if None.
        method: ``"schedule"`` keeps the order of the schedule; ``"aligned"`` reorders
            nodes and blocks, and has at least as many bytes in place as ``"schedule"``.
        aligned: Whether ``"aligned"`` considers the operands of each type; all types if
            None. ``[T] bool``.
        reuse: Whether rows are reused after the last read of their values; the model's
            outputs are kept. Gradients are impossible then.
        effort: Maximum number of operands and nodes that the search for a better
            alignment may examine, after the first one is found; None for
            `default_effort`.

    Returns:
        The layout. Time O(V + E), plus sorting for the aligned layout.

    Raises:
        PlanError: An arena would have more rows than int32 can count.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> from edbatch.policies import Greedy
        >>> graph = batched.graph([1.0, 5.0])
        >>> layout = plan_layout(graph, Greedy().schedule(graph.structure), eb.Sizes())
        >>> layout.chunk_size.tolist()
        [2, 2]
    """
    assert method in LAYOUTS, f"there is no layout {method!r}"
    if method == "schedule" and not reuse:
        return lay_out_in_order(graph, schedule, sizes, widths, overheads)
    problem = make_problem(graph, schedule, sizes, widths, overheads)
    blocks = np.arange(schedule.num_batches, dtype=np.int32)
    placed = place_blocks(problem, blocks, schedule.order, False)
    layout, in_place_bytes = _finish(problem, schedule.order, *placed)
    if method == "aligned":
        if effort is None:
            effort = default_effort(graph.num_nodes)
        read = problem
        if aligned is not None:
            only = np.where(aligned[:, None], problem.slot_bytes, 0)
            read = problem._replace(slot_bytes=only)
        best = best_alignment(read, effort)
        own, own_bytes = _finish(problem, best.order, best.value_row, best.arena_rows)
        if own_bytes >= in_place_bytes:
            blocks, layout = best.blocks, own
    if reuse:
        placed = place_with_reuse(
            problem, blocks, layout.order, layout.in_place, find_outputs(graph)
        )
        layout = replace(_finish(problem, layout.order, *placed)[0], reuse=True)
    check_rows(int(layout.arena_rows.max(initial=0)), "arena rows")
    return layout


def lay_out_in_order(
    graph: DataflowGraph,
    schedule: Schedule,
    sizes: Sizes,
    widths: tuple[Widths, ...] | None,
    overheads: tuple[float, ...] | None,
) -> Layout:
    """Lays out in schedule order, in one call of compiled code.

    Args:
        graph: As for `plan_layout`.
        schedule: As for `plan_layout`.
        sizes: As for `plan_layout`.
        widths: As for `plan_layout`.
        overheads: As for `plan_layout`.

    Returns:
        The layout.

    Raises:
        PlanError: As `plan_layout`.
    """
    start, size, width, value_row, arena_rows, in_place = _in_order(
        schedule.order,
        schedule.batch_start,
        schedule.batch_type,
        cuts_of_types(graph, sizes, widths, overheads),
        graph.arrays,
        graph.num_values,
        layout_tables(graph),
        len(graph.types.avals),
        False,
    )
    check_rows(max(arena_rows.tolist(), default=0), "arena rows")
    return Layout(
        schedule.order,
        schedule.batch_start,
        schedule.batch_type,
        start,
        size,
        width,
        value_row,
        arena_rows,
        in_place,
    )


@kernel
def _in_order(
    order, batch_start, batch_type, cuts, nodes, num_values, tables, num_kinds, tight
):
    """Lays out in schedule order; unused fields of the `LayoutProblem` stay empty.

    `cuts` and `tables` are plain tuples, which Numba accepts faster than named ones.
    `tight` is no literal here, since Numba would compile `place_blocks` again for it.
    """
    start, size, width, batch_rows = cut_batches(batch_start, batch_type, *cuts)
    column_kind, column_leaf, slot_bytes, slot_kind = tables
    problem = LayoutProblem(
        order,
        batch_start,
        batch_type,
        batch_rows,
        start,
        size,
        width,
        nodes.node_type,
        nodes.value_start,
        nodes.operand_start,
        nodes.operands,
        np.empty(0, np.int32),
        np.empty(num_values, np.int32),
        column_kind,
        column_leaf,
        slot_bytes,
        slot_kind,
        num_kinds,
    )
    blocks = np.arange(len(batch_type)).astype(np.int32)
    value_row, arena_rows = place_blocks(problem, blocks, order, tight)
    in_place, _ = find_in_place(problem, order, value_row, arena_rows)
    return start, size, width, value_row, arena_rows, in_place


def _finish(
    problem: LayoutProblem,
    order: np.ndarray,
    value_row: np.ndarray,
    arena_rows: np.ndarray,
) -> tuple[Layout, int]:
    """Makes a layout of placed values; also returns the bytes in place."""
    in_place, in_place_bytes = find_in_place(problem, order, value_row, arena_rows)
    layout = Layout(
        order,
        problem.batch_start,
        problem.batch_type,
        problem.chunk_start,
        problem.chunk_size,
        problem.chunk_width,
        value_row,
        arena_rows,
        in_place,
    )
    return layout, in_place_bytes
