"""Pending nodes of requests in flight, as a serving policy's wave sees them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edbatch.graph.node_type import TypeKey
from edbatch.serving.request import Request
from edbatch.waves.runner import WaveRunner


@dataclass(frozen=True, eq=False)
class FlightNodes:
    """The ``N`` nodes that ``R`` requests in flight need and that have not run.

    Attributes:
        type_keys: The model's types.
        key: What a node is known by from wave to wave; ascending with its request.
        node_type: Type of each node, in an order in which they can run.
        owner: The request of each.
        readers: As `GraphStructure.consumers`.
        arrival_ms: When each request came, on the server's clock.
        deadline_ms: Its deadline; infinite for none.
    """

    type_keys: tuple[TypeKey, ...]
    key: np.ndarray  # [N] int64
    node_type: np.ndarray  # [N] int32
    owner: np.ndarray  # [N] int32
    readers: tuple[np.ndarray, np.ndarray, np.ndarray]
    arrival_ms: np.ndarray  # [R] float64
    deadline_ms: np.ndarray  # [R] float64


def flight_nodes(
    runner: WaveRunner, requests: Sequence[Request], start_s: float
) -> tuple[FlightNodes, np.ndarray]:
    """Finds what requests need.

    Args:
        runner: Their runner; what was recorded is pending then.
        requests: All of its requests, as they came.
        start_s: When the server's clock was at zero, by `time.perf_counter`.

    Returns:
        The nodes, and the number of each among those that are pending; ``[N] int32``.
    """
    runner.take()
    pending = runner.pending
    runs = [each.run for each in requests if each.run is not None]
    values = [each._value for run in runs for each in run.asked]
    chosen, _ = pending.to_run(np.array(values, np.int64), runner.value_rows)
    owner = request_places(pending.nodes.owner[chosen], [run.number for run in runs])
    if (owner < 0).any():  # of requests that have ended
        chosen, owner = chosen[owner >= 0], owner[owner >= 0]
    structure = pending.structure(chosen)
    arrival = np.array([each.submitted for each in requests])
    deadline = [np.inf if each.deadline is None else each.deadline for each in requests]
    nodes = FlightNodes(
        structure.type_keys,
        pending.nodes.first_value[chosen],
        structure.node_type,
        owner,
        structure.consumers,
        1e3 * (arrival - start_s),
        1e3 * (np.array(deadline) - start_s),
    )
    return nodes, chosen


def request_places(owner: np.ndarray, numbers: Sequence[int]) -> np.ndarray:
    """Returns the request of each node.

    Args:
        owner: The number of each node's instance; ``[N] int32``.
        numbers: The number of each request's instance.

    Returns:
        Its place among the requests, -1 where it is of none; ``[N] int32``.
    """
    given = np.asarray(numbers, np.int64)
    order = np.argsort(given)
    place = np.minimum(np.searchsorted(given[order], owner), max(0, len(given) - 1))
    found = order[place]
    return np.where(given[found] == owner, found, -1).astype(np.int32)
