"""Traces of requests, drawn once and served by several policies."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PolicyError
from edbatch.policies.serving.choices import GREEDY, MACHINE, RULE
from edbatch.policies.serving.compiled_run import serve_all
from edbatch.policies.serving.deciding import UNLIMITED, Choice
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.serving.arrivals import Arrivals
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.policy import Admission
from edbatch.schedule.serving.simulation import (
    Served,
    ServingConfig,
    Simulation,
    new_view,
)

_QUANTA = 10_000  # quanta of waiting before giving up, besides the time of all nodes


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace of ``R`` requests.

    Attributes:
        instance: Instance of each request.
        arrival_ms: Arrival time of each request, ascending.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import Arrivals, InstanceLibrary
        >>> from edbatch.schedule.serving import ServingConfig
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(affine_costs(2))
        >>> from edbatch.policies.serving import draw_trace
        >>> trace = draw_trace(library, Arrivals(rate=100), requests=3, seed=0)
        >>> trace.instance.tolist(), len(trace.arrival_ms)
        ([0, 0, 0], 3)
    """

    instance: np.ndarray  # [R] int32
    arrival_ms: np.ndarray  # [R] float64


def draw_trace(
    library: InstanceLibrary, arrivals: Arrivals | None, requests: int, seed: int
) -> Trace:
    """Draws requests.

    Args:
        library: The instances.
        arrivals: The arrival process; None if all requests arrive at once.
        requests: Number of requests.
        seed: The same seed gives the same instances, and the same pattern of arrivals
            at all rates.

    Returns:
        The trace.

    Raises:
        PolicyError: There are no requests, or the seed is not a whole number of at
            least 0.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import Arrivals, InstanceLibrary
        >>> from edbatch.schedule.serving import ServingConfig
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(affine_costs(2))
        >>> draw_trace(library, Arrivals(rate=100), 3, 0).instance.tolist()
        [0, 0, 0]
    """
    check_number(PolicyError, "requests", requests, 1, whole=True)
    check_number(PolicyError, "seed", seed, 0, whole=True)
    rng = np.random.default_rng(seed)
    instance = rng.integers(library.num_instances, size=requests).astype(np.int32)
    if arrivals is None:
        return Trace(instance, np.zeros(requests))
    return Trace(instance, arrivals.draw(rng, requests))


class CompiledPolicy(Protocol):
    """A serving policy whose choice is compiled."""

    @property
    def name(self) -> str:
        """Short name for tables."""

    @property
    def admission(self) -> Admission:
        """When requests join."""

    @property
    def max_rows(self) -> int | None:
        """Maximum rows of a batch; None for the server's own limit."""

    @property
    def choice(self) -> Choice:
        """The policy's arguments of `choose`, for compiled code."""


def serve(
    policy: CompiledPolicy,
    library: InstanceLibrary,
    config: ServingConfig,
    trace: Trace,
    deadline_ms: float | None = None,
    patience_ms: float | None = None,
) -> Served:
    """Serves a trace of requests with a policy, in compiled code.

    Args:
        policy: The policy, for the types of the library.
        library: The instances.
        config: The server; the policy's admission replaces its own.
        trace: The requests.
        deadline_ms: Time from arrival to deadline of each request; None for no
            deadlines.
        patience_ms: Time limit after the last arrival; infinity for no limit. None for
            a limit that is longer than running each node by itself takes, and that only
            a policy that keeps waiting exceeds.

    Returns:
        The results; requests that were given up have an infinite finish time.

    Raises:
        PolicyError: The policy is for other types than the library's, or for the same
            types in another order.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import Arrivals, InstanceLibrary
        >>> from edbatch.schedule.serving import ServingConfig
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(affine_costs(2))
        >>> trace = draw_trace(library, Arrivals(rate=100), 20, 0)
        >>> served = serve(serving_heuristics(library)[0], library, config, trace)
        >>> len(served.latency_ms), bool((served.latency_ms > 0).all())
        (20, True)
    """
    _check_types(policy, library)
    kind, weights, scale_ms, wave = policy.choice
    simulation = Simulation(
        library,
        config.under(policy.admission),
        trace.instance,
        trace.arrival_ms,
        deadline_ms,
        track_heads=kind in (GREEDY, RULE, MACHINE),
    )
    most = UNLIMITED if policy.max_rows is None else policy.max_rows
    if patience_ms is None:
        patience_ms = _longest_ms(library, simulation, trace, deadline_ms)
    give_up = trace.arrival_ms[-1] + patience_ms
    view = new_view(library.num_types)
    with keyboard_interrupts():
        serve_all(
            *simulation.compiled, view, kind, weights, scale_ms, wave, most, give_up
        )
    return simulation.served()


def _longest_ms(
    library: InstanceLibrary,
    simulation: Simulation,
    trace: Trace,
    deadline_ms: float | None,
) -> float:
    """Returns an upper bound on the time of policies that do not keep waiting.

    Each node may run in its own wave, after a quantum of waiting, and each request in
    its own window. `_QUANTA` and the deadline are added for policies that wait.
    """
    rules = simulation.compiled[1]
    rows = np.arange(1, rules.cost_ms.shape[1])
    row_ms = (rules.cost_ms[:, 1:] / rows).max(axis=1)  # a node's share of a batch
    node_ms = row_ms + rules.overhead_ms + rules.quantum_ms
    nodes = library.instance_types[trace.instance].sum(axis=0, dtype=np.int64)
    windows_ms = len(trace.instance) * max(0.0, rules.window_ms)
    idle_ms = _QUANTA * rules.quantum_ms + (deadline_ms or 0.0)
    return float(nodes @ node_ms) + windows_ms + idle_ms


def _check_types(policy: CompiledPolicy, library: InstanceLibrary) -> None:
    """Checks a policy's types; only their number if the policy does not name them."""
    types = getattr(policy, "types", None)
    if types is None:
        ours = getattr(policy, "num_types", library.num_types)
        is_right = ours == library.num_types
    else:
        ours = len(types)
        is_right = tuple(types) == library.type_keys
    if not is_right:
        which = "others" if ours == library.num_types else str(ours)
        raise PolicyError(
            f"a serving policy serves the types that it is for, but {policy.name!r} is"
            f" for {which} and the library has {library.num_types}; pass"
            " policy.for_types(library.type_keys)"
        )
