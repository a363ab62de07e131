"""The host pipeline: schedule, check, hoist, lay out, choose slices, encode, pad.

The same pipeline serves one device and several. It depends only on a graph, the state
of its model, and the options. The decisions that depend on instances (such as which
types are hoisted and which operands loops read as slices) are made from the sample of
`fit`; without one, the first minibatch with a type decides for that type.
"""

import time
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.output_tree import ResultShape
from edbatch.memory_planner.layout import Layout, plan_layout
from edbatch.memory_planner.planner import AUTO
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.plan.cache import Key, plan_identity
from edbatch.plan.plan import (
    Encoded,
    Plan,
    Unpadded,
    encode_unpadded,
    fit_bucket,
    pad,
)
from edbatch.plan.report import PlanReport
from edbatch.plan_state import PlanState
from edbatch.schedule.hoist import hoist
from edbatch.schedule.policy import needs_check, reject_invalid
from edbatch.schedule.schedule import Schedule
from edbatch.stream.buckets import INSTANCES
from edbatch.target import CPU, Target

# Pad to any number of instances for which a program exists.
ANY: Literal["any"] = "any"


def plan(
    graph: DataflowGraph,
    state: ModelState,
    options: Options,
    target: Target = CPU,
    *,
    pad_to: int | Literal["any"] | None = None,
) -> Plan:
    """Plans a minibatch for one device.

    Args:
        graph: The graph of its instances, with the state's types.
        state: The state of its model.
        options: Options of planning.
        target: The kind of device that will run it.
        pad_to: Rows of the result, at least the number of instances; exactly that if
            None; or `ANY`.

    Returns:
        The plan, with NumPy arrays.

    Raises:
        EdbatchError: The policy belongs to another model, or its schedule is invalid;
            or the minibatch has more rows than int32 can count.
    """
    own, instances = state.planning, graph.num_instances
    rows = pad_to if isinstance(pad_to, int) else instances
    result = graph.outputs.describe(rows)

    def make() -> Encoded:
        part = encode_graph(graph, result, own, options, target)
        return pad_to_bucket(part, own, options, target, pad_to)

    if not options.cache_bytes:
        return make().with_externals(graph.externals)

    def key() -> Key:
        values = own.index_values(graph)
        return plan_identity(graph, result, options, target, pad_to, values)

    encoded, known = own.plans.get_or_make(key, make)
    found = encoded.with_externals(graph.externals)
    return replace(found, report=as_cached(found.report)) if known else found


def pad_to_bucket(
    part: Unpadded,
    own: PlanState,
    options: Options,
    target: Target,
    pad_to: int | Literal["any"] | None,
) -> Encoded:
    """Pads a plan to a bucket of the model.

    Args:
        part: The plan before padding.
        own: The planning decisions of its model.
        options: Options of planning.
        target: The kind of device that will run it.
        pad_to: As for `plan`.

    Returns:
        The padded plan without its external inputs.
    """
    bucket = fit_bucket(
        [part],
        own.running_types,
        own.buckets,
        {INSTANCES: part.num_instances} if pad_to == ANY else {},
        target,
        part.result.instances / part.num_instances,
        own.widths_on(target).of,
    )
    part = own.with_running_types(part)
    if pad_to == ANY:
        part = replace(part, result=part.result.with_rows(bucket.sizes[INSTANCES]))
    return pad(part, bucket, options.planner, options.compiler)


def fit(
    graph: DataflowGraph, state: ModelState, options: Options, target: Target = CPU
) -> None:
    """Makes all decisions that depend on instances, from one sample.

    They replace earlier decisions, and later minibatches do not change them.

    Args:
        graph: The graph of the sample, with the state's types.
        state: The state of the model.
        options: Options of planning.
        target: The kind of device that will run plans.

    Raises:
        EdbatchError: As for `plan`.
    """
    decided = PlanState.start(state.types, options)
    result = graph.outputs.describe(graph.num_instances)
    encode_graph(graph, result, decided, options, target)
    decided.freeze(graph.num_instances)
    state.planning = decided


def as_cached(report: PlanReport | None) -> PlanReport:
    """Marks the report of a plan as taken from the cache.

    Args:
        report: The report from when the plan was made.

    Returns:
        The same counts, with `plan_ms` 0 and `cached` True.
    """
    assert report is not None, "plans are made with a report"
    return replace(report, plan_ms=0.0, cached=True)


def encode_graph(
    graph: DataflowGraph,
    result: ResultShape,
    state: PlanState,
    options: Options,
    target: Target,
) -> Unpadded:
    """Encodes a graph as integers: the whole pipeline except padding to a bucket.

    Args:
        graph: The graph.
        result: The structure of its result.
        state: The planning decisions of its model.
        options: Options of planning.
        target: The kind of device that will run it.

    Returns:
        The plan before padding.

    Raises:
        EdbatchError: As for `plan`.
    """
    laid_out = lay_out(graph, state, options, target)
    return encode_laid_out(laid_out, result, state)


@dataclass(frozen=True, eq=False)
class LaidOut:
    """A scheduled and laid-out minibatch.

    Attributes:
        graph: The graph, with the running types.
        schedule: Its schedule.
        layout: Its layout.
        plan_ms: Time to schedule and lay out, in milliseconds.
    """

    graph: DataflowGraph
    schedule: Schedule
    layout: Layout
    plan_ms: float


def encode_laid_out(
    laid_out: LaidOut, result: ResultShape, state: PlanState
) -> Unpadded:
    """Encodes a laid-out minibatch as integers.

    Args:
        laid_out: The minibatch.
        result: The structure of its result.
        state: The planning decisions of its model.

    Returns:
        The plan before padding.
    """
    return encode_unpadded(
        laid_out.graph,
        laid_out.schedule,
        laid_out.layout,
        result,
        state.variants,
        laid_out.plan_ms,
    )


def lay_out(
    graph: DataflowGraph, state: PlanState, options: Options, target: Target
) -> LaidOut:
    """Schedules, hoists and lays out a graph: the pipeline up to encoding.

    Args:
        graph: The graph.
        state: The planning decisions of its model.
        options: Options of planning.
        target: The kind of device that will run it.

    Returns:
        The minibatch, scheduled and laid out.

    Raises:
        EdbatchError: As for `plan`.
    """
    start = time.perf_counter()
    policy, planner = options.policy, options.planner
    schedule = policy.schedule(graph.structure)
    if needs_check(policy):
        schedule = reject_invalid(schedule, graph.structure, policy)
    if state.hoisted is not None:
        graph, schedule = hoist(graph, schedule, state.hoisted)
    widths = state.widths_on(target)
    own = widths.choose(graph, schedule), widths.overheads(graph)

    def laid_out(aligned: np.ndarray | None) -> Layout:
        return plan_layout(
            graph,
            schedule,
            widths.sizes,
            *own,
            method="schedule" if aligned is None else "aligned",
            aligned=aligned,
            reuse=planner.reuses_rows,
            effort=planner.effort,
        )

    if planner.layout == AUTO:
        used = sorted({*schedule.batch_type.tolist()})
        layout = state.layouts.lay_out(graph, used, laid_out, target)
    elif planner.layout == "aligned":
        layout = laid_out(np.ones(graph.num_types, np.bool_))
    else:
        layout = laid_out(None)
    return LaidOut(graph, schedule, layout, 1e3 * (time.perf_counter() - start))
