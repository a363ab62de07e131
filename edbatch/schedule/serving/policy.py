"""Protocol of policies that choose a server's next batch, and what they observe."""

import math
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PolicyError
from edbatch.graph.node_type import TypeKey
from edbatch.schedule.serving.kernels import LOOK, WAIT


@dataclass(frozen=True)
class Admission:
    """Rule for admitting requests that have arrived to those in flight.

    Attributes:
        window_ms: None: each request joins at the next look (continuous batching). A
            number: while no request is in flight, requests are collected until the
            first has waited for this time or there are `max_requests`; they run to
            their end before the next ones join (fixed windows; 0 means run at once).
        max_requests: Maximum number of requests in flight.

    Raises:
        PolicyError: A number is out of range.

    Example:
        >>> Admission().is_continuous, Admission(window_ms=5).is_continuous
        (True, False)
    """

    window_ms: float | None = None
    max_requests: int = 256

    def __post_init__(self) -> None:
        if self.window_ms is not None:
            check_number(PolicyError, "window_ms of an admission", self.window_ms, 0)
        name = "max_requests of an admission"
        check_number(PolicyError, name, self.max_requests, 1, whole=True)

    @property
    def is_continuous(self) -> bool:
        """Whether requests may join while others are in flight."""
        return self.window_ms is None


JOIN_AT_ONCE = Admission()


@dataclass(frozen=True, eq=False)
class ServingState:
    """State of a server between two batches; ``T`` types of nodes.

    Times and arrivals are those at the beginning of the current wave.

    Attributes:
        waiting: Nodes of each type whose operands are computed.
        remaining: Nodes of each type, of requests in flight, that have not run,
            including those that wait; only nodes that are already recorded.
        oldest_ms: Time since the arrival of the oldest request with a waiting node of
            each type; 0 where none waits.
        waited_ms: Time for which the node of each type that became ready first has been
            waiting; 0 where none waits.
        slack_ms: Time until the earliest deadline of a request with a waiting node of
            each type, negative when it has passed; infinite where there is none.
        in_flight: Requests that have joined and are not done.
        arrived: Requests that have arrived but not joined.
        batches: Batches of the current wave so far; 0 at its beginning.
        now_ms: The clock.
        heads: Per type, the nodes of requests in flight that have not run and wait for
            no node of their own type (`edbatch.schedule.sufficient_condition`); None if
            they are not counted. The policy `greedy` needs them; without them, a
            learned policy uses the share of remaining nodes instead of that of heads.

    Example:
        >>> import numpy as np
        >>> state = ServingState(
        ...     waiting=np.array([3, 5]),
        ...     remaining=np.array([3, 9]),
        ...     oldest_ms=np.array([4.0, 1.0]),
        ...     waited_ms=np.array([0.5, 0.5]),
        ...     slack_ms=np.array([np.inf, np.inf]),
        ...     in_flight=3,
        ... )
        >>> state.num_types
        2
    """

    waiting: np.ndarray  # [T] int32
    remaining: np.ndarray  # [T] int32
    oldest_ms: np.ndarray  # [T] float64
    waited_ms: np.ndarray  # [T] float64
    slack_ms: np.ndarray  # [T] float64
    in_flight: int
    arrived: int = 0
    batches: int = 0
    now_ms: float = 0.0
    heads: np.ndarray | None = None  # [T] int32

    @property
    def num_types(self) -> int:
        """Number of types, T."""
        return len(self.waiting)


@runtime_checkable
class ServingPolicy(Protocol):
    """Decides what a server runs next, batch by batch.

    A server calls `decide` before each batch, or ahead of time: the batches that are
    decided from one look to the next are a *wave*, which can run as one program.

    Attributes:
        name: Short name for tables.
        admission: When requests join; the server obeys it.
        max_rows: Maximum number of rows of a batch; None for the server's own limit.

    Example:
        >>> from edbatch.policies.serving import serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import InstanceLibrary
        >>> found = serving_heuristics(InstanceLibrary.of([chain("ab")]))
        >>> isinstance(found[0], ServingPolicy), found[0].name
        (True, 'agenda')
    """

    @property
    def name(self) -> str:
        """Short name for tables."""

    @property
    def admission(self) -> Admission:
        """When requests join."""

    @property
    def max_rows(self) -> int | None:
        """Maximum number of rows of a batch; None for the server's own limit."""

    def for_types(self, type_keys: tuple[TypeKey, ...]) -> Self:
        """Returns the policy for a model's types.

        Args:
            type_keys: The types, in the order of the states' arrays; a server calls
                this again when the model has met new ones.

        Returns:
            The policy whose `decide` is for these types. Types that it was not trained
            on are treated like an average type.
        """

    def decide(self, state: ServingState) -> int:
        """Decides what runs next.

        Args:
            state: The state of the server; a node of at least one type is waiting.

        Returns:
            A type with waiting nodes, all of which run as one batch (the first
            `max_rows` that became ready, if there are more); `WAIT`, only at the
            beginning of a wave; or `LOOK`, only later in a wave.
        """


def check_decision(policy: ServingPolicy, state: ServingState, decision: int) -> None:
    """Checks the decision of a third-party policy.

    Args:
        policy: The policy.
        state: The state that it was given.
        decision: The decision that it returned.

    Raises:
        PolicyError: The decision is neither a type with waiting nodes, nor `WAIT` at
            the beginning of a wave, nor `LOOK` later in it.
    """
    if decision == (LOOK if state.batches else WAIT):
        return
    if not 0 <= decision < state.num_types or not state.waiting[decision]:
        legal = np.flatnonzero(state.waiting).tolist()
        raise PolicyError(
            f"a serving policy decides for a type with waiting nodes, here {legal}, for"
            f" WAIT ({WAIT}) at the beginning of a wave or for LOOK ({LOOK}) later, but"
            f" after {state.batches} batches of the wave {policy.name!r} decided"
            f" {decision}; go by state.waiting and state.batches"
        )


def deadline_or_never(deadline_ms: float | None) -> float:
    """Returns a deadline in milliseconds, infinite for none.

    With a deadline of zero, every answer that takes time is late.

    Args:
        deadline_ms: The deadline, or None.

    Returns:
        The deadline as a float.

    Raises:
        PolicyError: The deadline is not a number of at least 0.
    """
    if deadline_ms is None:
        return math.inf
    check_number(PolicyError, "a deadline in ms", deadline_ms, 0)
    return float(deadline_ms)
