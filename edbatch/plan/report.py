"""The costs of a plan, as counts."""

from dataclasses import dataclass

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.kernel import kernel
from edbatch.memory_planner.layout import Layout
from edbatch.memory_planner.problem import bytes_per_slot
from edbatch.schedule.schedule import Schedule


@dataclass(frozen=True)
class PlanReport:
    """Counts of one plan.

    Attributes:
        policy: Name of the policy that scheduled it.
        nodes: Nodes of the minibatch.
        batches: Batches of its schedule.
        hoisted: Precomputed nodes, which compute products of external inputs; the
            counts of chunks, operands and bytes below include them.
        unseen_states: Batches that a learned policy chose by its fallback.
        chunks: Chunks into which the batches were cut.
        padding_rows: Padding rows computed.
        operands: Operand slots of all chunks.
        operands_in_place: Operand slots that are one contiguous, ordered slice.
        operand_bytes: Bytes that the nodes read from the arenas.
        in_place_bytes: Operand bytes that are in place.
        sliced_bytes: In-place bytes that the program reads as slices. It gathers the
            others, because it has loops for few combinations of slices only.
        arena_bytes: Bytes of all arenas, without the bucket's headroom.
        plan_ms: Time to schedule and to lay out.
        cached: Whether schedule and layout came from the cache.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> report = batched.plan([1.0, 5.0, 3.0]).report
        >>> report.policy, report.nodes, report.batches
        ('greedy', 6, 2)
    """

    policy: str
    nodes: int
    batches: int
    hoisted: int
    unseen_states: int
    chunks: int
    padding_rows: int
    operands: int
    operands_in_place: int
    operand_bytes: int
    in_place_bytes: int
    sliced_bytes: int
    arena_bytes: int
    plan_ms: float = 0.0
    cached: bool = False


def make_report(
    graph: DataflowGraph,
    schedule: Schedule,
    layout: Layout,
    sliced_bytes: int = 0,
    plan_ms: float = 0.0,
) -> tuple[PlanReport, np.ndarray]:
    """Counts the costs of a laid out schedule.

    Args:
        graph: The graph.
        schedule: Its schedule.
        layout: Its layout.
        sliced_bytes: Bytes that the program reads as slices.
        plan_ms: Time to schedule and to lay out.

    Returns:
        The counts (`edbatch.memory_planner.report_memory` has more), and the rows that
        chunks of each type compute, ``[T] int64``. Time O(C) in the number of chunks.
    """
    num_kinds, avals = len(layout.arena_rows), graph.types.avals
    slot_bytes, kind_bytes = graph.derived(
        ("bytes of slots and kinds", num_kinds),
        lambda types: (
            bytes_per_slot(types, avals),
            np.array([each.num_bytes for each in avals[:num_kinds]], np.int64),
        ),
    )
    nodes, counts, type_rows = _count(
        graph.instance_nodes,
        graph.node_type,
        schedule.order,
        schedule.batch_start,
        layout.order,
        layout.chunk_start,
        layout.chunk_size,
        layout.chunk_width,
        layout.in_place,
        graph.types.counts[0],
        slot_bytes,
    )
    batches, padding, operands, in_place, read_bytes, in_place_bytes = counts
    report = PlanReport(
        policy=schedule.policy,
        nodes=nodes,
        batches=batches,
        hoisted=graph.num_nodes - nodes,
        unseen_states=schedule.unseen_states,
        chunks=len(layout.chunk_start),
        padding_rows=padding,
        operands=operands,
        operands_in_place=in_place,
        operand_bytes=read_bytes,
        in_place_bytes=in_place_bytes,
        sliced_bytes=sliced_bytes,
        arena_bytes=int(layout.arena_rows @ kind_bytes),
        plan_ms=plan_ms,
    )
    return report, type_rows


@kernel
def _count(
    instance_nodes, node_type, schedule_order, batch_start, order, chunk_start,
    chunk_size, chunk_width, in_place, num_operands, slot_bytes,
):  # fmt: skip
    """Counts recorded nodes; batches of these, padding, operands, bytes; type rows."""
    nodes = np.int64(0)
    for each in instance_nodes:
        nodes += each
    type_rows = np.zeros(len(num_operands), np.int64)
    batches = padding = operands = slots_in_place = read = read_in_place = 0
    for b in range(len(batch_start) - 1):
        batches += schedule_order[batch_start[b]] < nodes
    for c in range(len(chunk_start)):
        padding += chunk_width[c] - chunk_size[c]
        t = node_type[order[chunk_start[c]]]
        type_rows[t] += chunk_width[c]
        operands += num_operands[t]
        for slot in range(num_operands[t]):
            own = slot_bytes[t, slot] * chunk_size[c]
            read += own
            if in_place[c, slot]:
                slots_in_place += 1
                read_in_place += own
    counts = batches, padding, operands, slots_in_place, read, read_in_place
    return nodes, counts, type_rows
