"""The host pipeline for several devices: balance, then one plan each, of one bucket."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.sharding import Mesh

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.merge import at_places, merge
from edbatch.graph.output_tree import ResultRows, join
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.plan.cache import structure_key
from edbatch.plan.plan import Encoded, Plan, Unpadded, fit_bucket, pad
from edbatch.planning import as_cached, encode_graph
from edbatch.sharding.balance import balance, predict_work
from edbatch.sharding.order import order_results
from edbatch.sharding.plan import ShardedPlan, ShardedShape, place
from edbatch.sharding.report import ShardedReport
from edbatch.target import choose_target

_INSTANCES = "instances"  # the dimension of a bucket that counts a device's instances


@dataclass(frozen=True, eq=False)
class EncodedShards:
    """All of a sharded plan but the external inputs: it depends on structure alone.

    Attributes:
        shards: The plan of each of ``D`` devices; None for one without instances.
        order: Where results lie.
    """

    shards: tuple[Encoded | None, ...]
    order: ResultRows

    @property
    def num_bytes(self) -> int:
        """Memory that it keeps alive, in bytes."""
        arrays = (*self.order.rows, *self.order.lengths)
        own = sum(each.nbytes for each in arrays)
        return own + sum(each.num_bytes for each in self.shards if each)


def plan_shards(
    recordings: Sequence[DataflowGraph],
    state: ModelState,
    options: Options,
    mesh: Mesh,
    axis: str,
) -> ShardedPlan:
    """Plans a minibatch for the devices of a mesh.

    Args:
        recordings: Recordings of its instances, at least one, as from `record_each`.
        state: The state of their model.
        options: What planning goes by.
        mesh: The devices.
        axis: The axis of the mesh over which minibatches are split.

    Returns:
        The plan, on the devices.

    Raises:
        EdbatchError: As `edbatch.planning.plan`; or the costs given are those of other
            cells.
    """
    start = time.perf_counter()
    own_outputs = [each.outputs for each in recordings]  # aligned
    outputs = join(own_outputs)
    result = outputs.describe(len(recordings))
    shape = ShardedShape(mesh, axis, result)
    target = choose_target(mesh=mesh)
    work = predict_work(recordings, state.types, options.costs)
    device = balance(work, shape.count)
    graphs = [
        at_places(merge([recordings[k] for k in places.tolist()]), places.tolist())
        if places.size
        else None
        for places in (np.flatnonzero(device == d) for d in range(shape.count))
    ]

    own = state.planning

    def make() -> EncodedShards:
        parts = [
            encode_graph(
                each,
                replace(result, instances=each.num_instances),
                own,
                options,
                target,
            )
            if each
            else None
            for each in graphs
        ]
        most = max(each.num_instances for each in graphs if each)
        bucket = fit_bucket(
            [each for each in parts if each],
            own.buckets_of(mesh, axis),
            {_INSTANCES: most},
            target,
        )
        instances = bucket.sizes[_INSTANCES]

        def padded(part: Unpadded) -> Encoded:
            wide = replace(part.result, instances=instances)
            part = replace(part, result=wide)
            return pad(part, bucket, options.planner, options.compiler)

        shards = tuple(padded(each) if each else None for each in parts)
        stack_rows = next([len(x) for x in e.plan.rows] for e in shards if e)
        sizes = {name: shape.count * size for name, size in bucket.sizes.items()}
        order = order_results(
            own_outputs, outputs.lengths, device, stack_rows, result, sizes
        )
        return EncodedShards(shards, order)

    known = False
    if options.cache_bytes:
        keys = tuple(structure_key(each) if each else None for each in graphs)
        key = (mesh, axis, device.tobytes(), result, keys, options)
        encoded, known = own.plans.get_or_make(key, make)
    else:
        encoded = make()
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
    return place(shape, plans, encoded.order, report)


def _complete(
    shape: ShardedShape,
    shards: Sequence[Encoded | None],
    graphs: Sequence[DataflowGraph | None],
) -> list[Plan]:
    """Adds external inputs; shards that are empty or of other processes are zeros."""
    plans: dict[int, Plan] = {}
    here = shape.here()
    for d, (shard, graph) in enumerate(zip(shards, graphs, strict=True)):
        if shard and graph and (d in here or not plans):
            plans[d] = shard.with_externals(graph.externals)
    nothing = jax.tree.map(np.zeros_like, next(iter(plans.values())))
    return [plans.get(d, nothing) for d in range(shape.count)]
