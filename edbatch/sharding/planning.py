"""The host pipeline for several devices: balance, then plans for all in one bucket."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import at_places, merge
from edbatch.graph.output_tree import ResultRows, ResultShape, join
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.plan.cache import Key, plan_identity
from edbatch.plan.plan import Encoded, Plan, Unpadded, fit_bucket, pad
from edbatch.plan_state import PlanState
from edbatch.planning import ANY, as_cached, encode_graph
from edbatch.sharding.balance import balance, predict_work
from edbatch.sharding.order import order_results
from edbatch.sharding.plan import ShardedPlan, ShardedShape, place
from edbatch.sharding.report import ShardedReport
from edbatch.stream.buckets import INSTANCES
from edbatch.target import Target, choose_target

_OF_DEVICE = "instances of a device"  # size in a bucket: the most of any device


@dataclass(frozen=True, eq=False)
class EncodedShards:
    """A sharded plan without its external inputs; it depends on structure alone.

    Attributes:
        shards: The plan of each of ``D`` devices; None for devices without instances.
        order: As returned by `order_results`.
        result: Structure of the whole minibatch's result.
    """

    shards: tuple[Encoded | None, ...]
    order: ResultRows
    result: ResultShape

    @property
    def num_bytes(self) -> int:
        """Memory that it keeps alive, in bytes."""
        arrays = (*self.order.rows, *self.order.lengths)
        own = sum(each.nbytes for each in arrays)
        return own + sum(each.num_bytes for each in self.shards if each)


class Split(NamedTuple):
    """A minibatch of ``B`` instances, divided among ``D`` devices.

    Attributes:
        device: The device of each instance; ``[B]``.
        graphs: The graph of each device's instances; None for devices without any.
        work: Predicted work of each instance; ``[B]``.
    """

    device: np.ndarray
    graphs: list[DataflowGraph | None]
    work: np.ndarray


def split_minibatch(
    recordings: Sequence[DataflowGraph],
    state: ModelState,
    options: Options,
    devices: int,
) -> Split:
    """Divides a minibatch so that all devices are busy for about the same time.

    Args:
        recordings: Recordings of its instances.
        state: The state of their model.
        options: Options of planning.
        devices: Number of devices, D.

    Returns:
        The split.

    Raises:
        PolicyError: The given costs are for other cells.
    """
    work = predict_work(recordings, state.types, options.costs)
    device = balance(work, devices)
    graphs = [
        at_places(merge([recordings[k] for k in places.tolist()]), places.tolist())
        if places.size
        else None
        for places in (np.flatnonzero(device == d) for d in range(devices))
    ]
    return Split(device, graphs, work)


def decide_together(
    recordings: Sequence[DataflowGraph],
    own: PlanState,
    options: Options,
    target: Target,
) -> None:
    """Bases decisions about new types on the whole minibatch, not on its first part.

    Args:
        recordings: Recordings of its instances.
        own: The planning state of their model.
        options: Options of planning.
        target: The kind of device.

    Raises:
        EdbatchError: As for `edbatch.planning.plan`.
    """
    if own.sample is not None:
        return
    found = {k for each in recordings for k in np.unique(each.node_type).tolist()}
    new = {(target, type_id) for type_id in found} - own.decided_together
    if new:
        whole = merge(recordings)
        result = whole.outputs.describe(whole.num_instances)
        encode_graph(whole, result, own, options, target)
        own.decided_together |= new


def plan_shards(
    recordings: Sequence[DataflowGraph],
    state: ModelState,
    options: Options,
    mesh: Mesh,
    axis: str,
    *,
    pad_to: int | Literal["any"] | None = None,
) -> ShardedPlan:
    """Plans a minibatch for the devices of a mesh.

    Args:
        recordings: Recordings of its instances, at least one, as returned by
            `record_each`.
        state: The state of their model.
        options: Options of planning.
        mesh: The devices.
        axis: The axis of the mesh over which minibatches are split.
        pad_to: As for `edbatch.planning.plan`.

    Returns:
        The plan.

    Raises:
        EdbatchError: As for `edbatch.planning.plan`; or the given costs are for other
            cells.
    """
    start = time.perf_counter()
    count = len(recordings)
    outputs = join([each.outputs for each in recordings])  # aligned
    result = outputs.describe(pad_to if isinstance(pad_to, int) else count)
    split = split_minibatch(recordings, state, options, int(mesh.shape[axis]))
    device, graphs, work = split
    own = state.planning

    def make() -> EncodedShards:
        return _encode(recordings, split, result, own, options, mesh, axis, pad_to)

    known = False
    if options.cache_bytes:

        def key() -> Key:
            keys = tuple(
                plan_identity(each, own.index_values(each)) if each else None
                for each in graphs
            )
            return (mesh, axis, device.tobytes(), result, keys, options, pad_to)

        encoded, known = own.plans.get_or_make(key, make)
    else:
        encoded = make()
    shape = ShardedShape(mesh, axis, encoded.result)
    plans = _complete(shape, encoded.shards, graphs)
    reports = [each.plan.report if each else None for each in encoded.shards]
    if known:
        reports = [each and as_cached(each) for each in reports]
    report = ShardedReport(
        tuple(reports),
        tuple(each.num_instances if each else 0 for each in graphs),
        tuple(np.bincount(device, work, shape.count).tolist()),
        1e3 * (time.perf_counter() - start),
    )
    return place(shape, plans, encoded.order, count, report)


def _encode(
    recordings: Sequence[DataflowGraph],
    split: Split,
    result: ResultShape,
    own: PlanState,
    options: Options,
    mesh: Mesh,
    axis: str,
    pad_to: int | Literal["any"] | None,
) -> EncodedShards:
    """Encodes the part of each device, all padded to one bucket."""
    device, graphs, _ = split
    target, count = choose_target(mesh=mesh), len(recordings)
    decide_together(recordings, own, options, target)
    parts = [
        encode_graph(
            each, replace(result, instances=each.num_instances), own, options, target
        )
        if each
        else None
        for each in graphs
    ]
    most = max(each.num_instances for each in graphs if each)
    bucket = fit_bucket(
        [each for each in parts if each],
        own.running_types,
        own.buckets_of(mesh, axis),
        {_OF_DEVICE: most} | ({INSTANCES: count} if pad_to == ANY else {}),
        target,
        (pad_to if isinstance(pad_to, int) else count) / count,
        own.widths_on(target).of,
    )
    whole = result
    if pad_to == ANY:
        whole = result.with_rows(bucket.sizes[INSTANCES])

    def padded(part: Unpadded) -> Encoded:
        wide = part.result.with_rows(bucket.sizes[_OF_DEVICE])
        part = replace(own.with_running_types(part), result=wide)
        return pad(part, bucket, options.planner, options.compiler)

    shards = tuple(padded(each) if each else None for each in parts)
    stack_rows = next([len(x) for x in e.plan.rows] for e in shards if e)
    sizes = {name: len(graphs) * size for name, size in bucket.sizes.items()}
    own_outputs = [each.outputs for each in recordings]
    lengths = join(own_outputs).lengths
    order = order_results(own_outputs, lengths, device, stack_rows, whole, sizes)
    return EncodedShards(shards, order, whole)


def _complete(
    shape: ShardedShape,
    shards: Sequence[Encoded | None],
    graphs: Sequence[DataflowGraph | None],
) -> list[Plan]:
    """Adds external inputs; empty shards and those of other processes are zeros."""
    plans: dict[int, Plan] = {}
    here = shape.here()
    for d, (shard, graph) in enumerate(zip(shards, graphs, strict=True)):
        if shard and graph and (d in here or not plans):
            plans[d] = shard.with_externals(graph.externals)
    nothing = jax.tree.map(np.zeros_like, next(iter(plans.values())))
    return [plans.get(d, nothing) for d in range(shape.count)]
