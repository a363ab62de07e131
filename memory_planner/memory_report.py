"""Memory use of a layout, measured from the layout itself."""

from dataclasses import asdict, dataclass

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.kernel import kernel
from edbatch.memory_planner.layout import Layout
from edbatch.memory_planner.problem import bytes_per_slot
from edbatch.memory_planner.reuse import find_outputs


@dataclass(frozen=True)
class MemoryReport:
    """Counts and bytes of one layout.

    Attributes:
        operands: Operand slots of all chunks.
        operands_in_place: Operand slots that are one slice in the chunk's own order.
        batch_operands: Operand slots of all batches.
        batch_operands_in_place: Operand slots that are one slice for the whole batch.
        operand_bytes: Bytes that the nodes read from the arenas.
        in_place_bytes: Operand bytes that are in place.
        gathered_bytes: The remaining bytes, which have to be gathered.
        padding_rows: Padding rows that chunks compute.
        arena_bytes: Bytes of all arenas.
        peak_bytes: Maximum bytes of values that are live while one batch runs: values
            that the batch writes or reads, and earlier ones that are read later or
            returned. Arenas cannot be smaller.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> from edbatch.memory_planner import plan_layout, report_memory
        >>> from edbatch.policies import Greedy
        >>> graph = batched.graph([1.0, 5.0])
        >>> layout = plan_layout(graph, Greedy().schedule(graph.structure), eb.Sizes())
        >>> report = report_memory(layout, graph)
        >>> report.operands, report.operands_in_place
        (1, 1)
    """

    operands: int
    operands_in_place: int
    batch_operands: int
    batch_operands_in_place: int
    operand_bytes: int
    in_place_bytes: int
    gathered_bytes: int
    padding_rows: int
    arena_bytes: int
    peak_bytes: int

    def as_dict(self) -> dict[str, int]:
        """Returns the fields by name, for JSON."""
        return asdict(self)


def report_memory(layout: Layout, graph: DataflowGraph) -> MemoryReport:
    """Measures a layout.

    Args:
        layout: The layout.
        graph: The graph that it was made for.

    Returns:
        The report. Time O(V + E).

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
        >>> report_memory(layout, graph).operand_bytes
        8
    """
    types = graph.types.types[: graph.num_types]
    avals = graph.types.avals[: len(layout.arena_rows)]
    num_operands = graph.types.counts[0]
    kind_bytes = np.array([each.num_bytes for each in avals], np.int64)
    slot_bytes = bytes_per_slot(types, avals)
    value_bytes = np.zeros(graph.num_values, np.int64)
    for t, node_type in enumerate(types):
        nodes = np.flatnonzero(graph.node_type == t)
        for leaf, kind in enumerate(node_type.output_kinds):
            value_bytes[graph.value_start[nodes] + leaf] = kind_bytes[kind]
    chunk_type = graph.node_type[layout.order[layout.chunk_start]]
    read = slot_bytes[chunk_type] * layout.chunk_size[:, None].astype(np.int64)
    operand_bytes = int(read.sum())
    in_place_bytes = int(read[layout.in_place].sum())
    return MemoryReport(
        operands=int(num_operands[chunk_type].sum()),
        operands_in_place=int(layout.in_place.sum()),
        batch_operands=int(num_operands[layout.batch_type].sum()),
        batch_operands_in_place=_count_whole(layout, graph),
        operand_bytes=operand_bytes,
        in_place_bytes=in_place_bytes,
        gathered_bytes=operand_bytes - in_place_bytes,
        padding_rows=int((layout.chunk_width - layout.chunk_size).sum()),
        arena_bytes=int((layout.arena_rows * kind_bytes).sum()),
        peak_bytes=int(
            _most_live(
                layout.order,
                layout.batch_start,
                graph.value_start,
                graph.operand_start,
                graph.operands,
                value_bytes,
                find_outputs(graph),
            )
        ),
    )


def _count_whole(layout: Layout, graph: DataflowGraph) -> int:
    """Counts the slots of batches whose chunks read consecutive slices."""
    first = np.searchsorted(layout.chunk_start, layout.batch_start[:-1])
    whole = np.logical_and.reduceat(layout.in_place, first) if len(first) else first
    inner = np.setdiff1d(np.arange(len(layout.chunk_start)), first)
    batch = np.searchsorted(layout.batch_start, layout.chunk_start, "right") - 1
    for c in inner:
        for slot in np.flatnonzero(whole[batch[c]]):
            places = layout.chunk_start[c] - np.array([1, 0])
            slots = graph.operand_start[layout.order[places]] + slot
            before, now = layout.value_row[graph.operands[slots]]
            whole[batch[c], slot] = now == before + 1
    return int(whole.sum())


@kernel
def _most_live(
    order, batch_start, value_start, operand_start, operands, value_bytes, is_output
):  # fmt: skip
    """Finds the maximum bytes that are live while one batch runs."""
    num_batches = len(batch_start) - 1
    last_read = np.full(len(value_bytes), -1, np.int32)
    more = np.zeros(num_batches + 1, np.int64)  # bytes that become live, minus freed
    for b in range(num_batches):
        for place in range(batch_start[b], batch_start[b + 1]):
            v = order[place]
            for value in range(value_start[v], value_start[v + 1]):
                more[b] += value_bytes[value]
                last_read[value] = b
            for e in range(operand_start[v], operand_start[v + 1]):
                if operands[e] >= 0:
                    last_read[operands[e]] = b
    for value in range(len(value_bytes)):
        if not is_output[value]:
            more[last_read[value] + 1] -= value_bytes[value]
    most = live = np.int64(0)
    for each in more:
        live += each
        most = max(most, live)
    return most
