"""Pending nodes of requests in flight, as input of a serving policy's decision."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edbatch.graph.node_type import TypeKey
from edbatch.serving.request import Request
from edbatch.waves.runner import WaveRunner


@dataclass(frozen=True, eq=False)
class FlightNodes:
    """The ``N`` pending nodes that ``R`` requests in flight need.

    Attributes:
        type_keys: The model's types.
        key: Identifier of each node, stable between waves; ascending within a request.
        node_type: Type of each node, in a topological order.
        owner: Index of each node's request.
        readers: As `GraphStructure.consumers`.
        arrival_ms: When each request arrived, on the server's clock.
        deadline_ms: Its deadline; infinite if it has none.
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
    """Finds the pending nodes that requests need.

    Args:
        runner: Their runner; its recorded nodes become pending.
        requests: All of its requests, in the order of arrival.
        start_s: Zero of the server's clock, by `time.perf_counter`.

    Returns:
        The nodes, and the index of each among all pending nodes; ``[N] int32``.
    """
    runner.take()
    pending = runner.pending
    runs = [each.run for each in requests if each.run is not None]
    values = [each._value for run in runs for each in run.asked]
    chosen, _ = pending.to_run(np.array(values, np.int64), runner.value_rows)
    owner = request_places(pending.nodes.owner[chosen], [run.number for run in runs])
    if (owner < 0).any():  # nodes of requests that have ended
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
    """Returns the index of each node's request.

    Args:
        owner: The number of each node's instance; ``[N] int32``.
        numbers: The number of each request's instance.

    Returns:
        The index among the requests, -1 for nodes of no request; ``[N] int32``.
    """
    given = np.asarray(numbers, np.int64)
    order = np.argsort(given)
    place = np.minimum(np.searchsorted(given[order], owner), max(0, len(given) - 1))
    found = order[place]
    return np.where(given[found] == owner, found, -1).astype(np.int32)
