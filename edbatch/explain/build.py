"""Counts the costs of a laid out minibatch, type by type."""

from collections import Counter
from typing import NamedTuple

import numpy as np

from edbatch.cell.flops import type_flops
from edbatch.cell.hoisted_types import HoistedTable
from edbatch.explain.apart import find_apart
from edbatch.explain.report import Explanation
from edbatch.explain.uses import BatchUses, TypeUse
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.memory_planner.problem import bytes_per_slot
from edbatch.plan.plan import Plan
from edbatch.planning import LaidOut
from edbatch.policies.cost.model import CostModel
from edbatch.schedule.lower_bound import longest_chains


def explain_plan(
    recorded: DataflowGraph, laid_out: LaidOut, plan: Plan, model: str
) -> Explanation:
    """Explains a minibatch.

    Args:
        recorded: Its graph as it was recorded.
        laid_out: The same minibatch, laid out.
        plan: Its plan.
        model: Name of the model.

    Returns:
        The report, without times. Time O(V + E), plus the time of `find_apart`.
    """
    assert plan.report is not None, "plans are made with a report"
    batches = _find_batches(recorded, laid_out)
    chains = longest_chains(recorded.structure)
    uses = tuple(
        _count_type(key, own, recorded, laid_out, batches, chains)
        for own, key in enumerate(batches.keys)
    )
    return Explanation(
        model=model,
        instances=recorded.num_instances,
        types=uses,
        model_types=recorded.types.keys,
        batches=BatchUses(batches.use, batches.nodes, batches.rows),
        lower_bound=int(chains.sum()),
        apart=find_apart(recorded),
        plan=plan.report,
        loops=len(plan.shape.program.loops),
    )


def predict_us(explanation: Explanation, costs: CostModel) -> list[float]:
    """Returns the time of each batch, as predicted from measured costs.

    Args:
        explanation: The minibatch.
        costs: The costs of the model's cells.

    Returns:
        Microseconds per batch. Costs are those of whole cells, so batches of hoisted
        parts get 0.

    Raises:
        PolicyError: The costs are for other cells.
    """
    uses, batches = explanation.types, explanation.batches
    return [
        0.0 if uses[use].hoisted else costs.batch_us(uses[use].type, count)
        for use, count in zip(batches.use.tolist(), batches.nodes.tolist(), strict=True)
    ]


class _Key(NamedTuple):
    """Key of an entry of the report.

    Attributes:
        type_id: The recorded type.
        hoisted: Whether the entry is the hoisted part of the type.
    """

    type_id: int
    hoisted: bool


class _Batches(NamedTuple):
    """The ``S`` batches and ``C`` chunks of a minibatch.

    Attributes:
        keys: The keys of the entries.
        use: The entry of each batch; ``[S]``.
        nodes: Nodes of each batch; ``[S]``.
        rows: Rows that each batch computes; ``[S]``.
        of_chunk: The batch of each chunk; ``[C]``.
    """

    keys: list[_Key]
    use: np.ndarray
    nodes: np.ndarray
    rows: np.ndarray
    of_chunk: np.ndarray


def batch_of_chunk(laid_out: LaidOut) -> np.ndarray:
    """Finds the batch of each chunk of a layout; ``[C] int64``."""
    layout = laid_out.layout
    return np.searchsorted(layout.batch_start, layout.chunk_start, "right") - 1


def _find_batches(recorded: DataflowGraph, laid_out: LaidOut) -> _Batches:
    """Attributes each batch to the recorded type of its nodes."""
    layout, graph = laid_out.layout, laid_out.graph
    first = layout.order[layout.batch_start[:-1]]
    count = recorded.num_nodes
    type_ids = np.empty(len(first), np.int64)
    own = first < count
    type_ids[own] = recorded.node_type[first[own]]
    if not own.all():
        assert isinstance(graph.types, HoistedTable), "hoisted nodes have types here"
        parts = graph.types.split.parts
        running = graph.node_type[first[~own]].tolist()
        type_ids[~own] = [parts[each].type_id for each in running]
    pairs = list(zip(type_ids.tolist(), (~own).tolist(), strict=True))
    keys = sorted(set(pairs))
    place = {key: k for k, key in enumerate(keys)}
    of_chunk = batch_of_chunk(laid_out)
    return _Batches(
        [_Key(*each) for each in keys],
        np.array([place[each] for each in pairs], np.int64),
        np.diff(layout.batch_start).astype(np.int64),
        np.bincount(of_chunk, layout.chunk_width, len(pairs)).astype(np.int64),
        of_chunk,
    )


def _count_type(
    key: _Key,
    own: int,
    recorded: DataflowGraph,
    laid_out: LaidOut,
    batches: _Batches,
    chains: np.ndarray,
) -> TypeUse:
    """Counts one entry of the report."""
    graph, layout = laid_out.graph, laid_out.layout
    mine = batches.use == own
    chunks = np.flatnonzero(mine[batches.of_chunk])
    first = layout.order[layout.chunk_start[chunks]]
    running = graph.node_type[first]
    known = graph.types.types[: graph.num_types]
    read = bytes_per_slot(known, graph.types.avals)[running]
    read = read * layout.chunk_size[chunks, None].astype(np.int64)
    in_place = layout.in_place[chunks]
    nodes = np.bincount(running, layout.chunk_size[chunks]).astype(np.int64)
    widths = Counter(layout.chunk_width[chunks].tolist())
    return TypeUse(
        type=recorded.types.types[key.type_id].key,
        hoisted=key.hoisted,
        nodes=int(batches.nodes[mine].sum()),
        batches=int(mine.sum()),
        chain=0 if key.hoisted else int(chains[key.type_id]),
        chunks=dict(sorted(widths.items())),
        operands=int(graph.types.counts[0][running].sum()),
        in_place=int(in_place.sum()),
        operand_bytes=int(read.sum()),
        in_place_bytes=int(read[in_place].sum()),
        flops=sum(
            int(nodes[each]) * type_flops(graph.types, graph.types.types[each])
            for each in np.flatnonzero(nodes).tolist()
        ),
    )
