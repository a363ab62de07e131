"""Assigns instances to devices, balanced by predicted work.

Longest processing time first (Graham, Bounds on multiprocessing timing anomalies,
1969): take the instances in descending order of work, and assign each to the device
with the least work so far. The busiest device then has at most 4/3 of the work of the
busiest device in the best split; with many instances that are small compared with a
device's share, as in minibatches, much less. Time O(n log n) for n instances.

Work grows with a device's instances. The fixed cost of a batch, however few nodes are
in it, does not: each device pays it for every batch, so it is left out.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.type_table import TypeTable
from edbatch.policies.cost.model import CostModel

_LEAST_SHARE = 0.01  # minimum cost of a type, relative to the most expensive type


def predict_work(
    recordings: Sequence[DataflowGraph],
    types: TypeTable,
    costs: CostModel | None = None,
) -> np.ndarray:
    """Predicts how long each recording keeps a device busy.

    Args:
        recordings: The recordings of one model.
        types: Its types.
        costs: Measured costs: the work of a node is the time that it adds to a batch of
            its type. Without costs, each node counts as 1.

    Returns:
        Microseconds, or numbers of nodes; positive, ``[R] float64``.

    Raises:
        PolicyError: The costs are for other cells.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> recordings = [batched.record(1.0), batched.record(5.0)]
        >>> work = predict_work(recordings, recordings[0].types)
        >>> work.shape, bool(work[0] == work[1])
        ((2,), True)
    """
    weights = np.ones(len(types))
    if costs is not None:
        weights = np.array([costs.affine_us(each.key)[1] for each in types.types])
        weights = np.maximum(weights, _LEAST_SHARE * (weights.max() or 1.0))
    return np.array([weights[each.node_type].sum() for each in recordings])


def balance(work: np.ndarray, devices: int) -> np.ndarray:
    """Splits instances over devices so that all are busy for about the same time.

    Args:
        work: Predicted work of each instance; ``[R] float64``.
        devices: Number of devices.

    Returns:
        The device of each instance; ``[R] int32``. With fewer instances than devices
        some devices get none.

    Example:
        >>> balance(np.array([5.0, 1.0, 2.0, 3.0]), 2).tolist()
        [0, 0, 1, 1]
    """
    device = np.empty(len(work), np.int32)
    # Load, number of instances, device: ties go to fewer instances, then in order.
    loads = [(0.0, 0, d) for d in range(devices)]
    for k in np.argsort(-work, kind="stable").tolist():
        load, count, d = loads[0]
        device[k] = d
        heapq.heapreplace(loads, (load + float(work[k]), count + 1, d))
    return device
