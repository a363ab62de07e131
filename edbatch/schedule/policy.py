"""The `Policy` protocol for scheduling graphs, and a base class for policies."""

from dataclasses import replace
from functools import wraps
from operator import index
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from edbatch.errors import PolicyError, shown
from edbatch.graph.structure import GraphStructure
from edbatch.graph.structure_arguments import check_structure
from edbatch.schedule.frontier import (
    FrontierState,
    frontier_size,
    remaining_size,
    run_type,
    start_frontier,
)
from edbatch.schedule.schedule import Schedule, check_schedule

PolicyClass = TypeVar("PolicyClass", bound=type)


@runtime_checkable
class Policy(Protocol):
    """Decides which operations run together.

    Implementations live in `edbatch.policies`. Subclass `FrontierPolicy` to write one
    that only chooses a type at each step.

    Example:
        >>> import edbatch as eb
        >>> from edbatch.policies import Greedy
        >>> from edbatch.schedule.examples import tree
        >>> isinstance(Greedy(), eb.Policy)
        True
        >>> Greedy().schedule(tree("((ab)cb)c")).num_batches
        4
    """

    @property
    def name(self) -> str:
        """Short name for tables."""

    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph.

        Args:
            structure: The graph.

        Returns:
            A schedule that passes `check_schedule`.
        """


class Frontier:
    """A read-only view of an execution, for policies written in Python.

    Example:
        >>> import numpy as np
        >>> from edbatch.schedule import start_frontier
        >>> from edbatch.schedule.examples import tree
        >>> structure = tree("(ab)c")
        >>> frontier = Frontier(structure, start_frontier(structure))
        >>> frontier.sizes.tolist(), frontier.remaining.tolist()
        ([1, 1, 0], [1, 1, 1])
    """

    def __init__(self, structure: GraphStructure, state: FrontierState) -> None:
        self.structure = structure
        self._state = state

    def __repr__(self) -> str:
        """Summary in one line."""
        ready, left = int(self.sizes.sum()), int(self.remaining.sum())
        return f"<Frontier: {ready} nodes are ready of {left} that remain>"

    @property
    def sizes(self) -> np.ndarray:
        """Frontier nodes of each type; ``[T] int32``."""
        return self._state.tail - self._state.head

    @property
    def remaining(self) -> np.ndarray:
        """Nodes of each type that have not run; ``[T] int32``."""
        return np.diff(self._state.type_start) - self._state.head

    def nodes(self, chosen: int) -> np.ndarray:
        """Frontier nodes of a type, in the order in which they became ready.

        Args:
            chosen: The type.

        Returns:
            The nodes; ``[n] int32``.
        """
        first = self._state.type_start[chosen]
        nodes = self._state.queue[
            first + self._state.head[chosen] : first + self._state.tail[chosen]
        ]
        nodes.flags.writeable = False
        return nodes


class FrontierPolicy:
    """A policy that chooses a type from the frontier; subclass and override `choose`.

    Example:
        >>> class LargestFirst(FrontierPolicy):
        ...     name = "largest"
        ...     def choose(self, frontier):
        ...         return int(frontier.sizes.argmax())
        >>> from edbatch.schedule.examples import tree
        >>> LargestFirst().schedule(tree("((ab)cb)c")).num_batches
        4
    """

    name = "frontier"

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"{type(self).__name__}()"

    def choose(self, frontier: Frontier) -> int:
        """Chooses the type to run next.

        Args:
            frontier: The execution so far.

        Returns:
            A type with at least one node on the frontier.
        """
        raise PolicyError(
            "a FrontierPolicy chooses a type at each step but policy"
            f" {self.name!r} does not define choose(frontier); override it"
        )

    def _index_of(self, chosen: Any) -> int:
        try:
            return index(chosen)
        except TypeError:
            raise PolicyError(
                f"policy {self.name!r} chose {shown(chosen)}, of type"
                f" {type(chosen).__name__}, but types are whole numbers; return one"
                " from choose, such as int(frontier.sizes.argmax())"
            ) from None

    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph by calling `choose` once per batch.

        Args:
            structure: The graph.

        Returns:
            The schedule.

        Raises:
            PolicyError: `choose` returned a type without frontier nodes, or no type.
        """
        state = start_frontier(structure)
        batches: list[tuple[int, int, int]] = []
        done = 0
        while done < structure.num_nodes:
            chosen = self._index_of(self.choose(Frontier(structure, state)))
            if not 0 <= chosen < structure.num_types or not frontier_size(
                state, chosen
            ):
                raise PolicyError(
                    f"policy {self.name!r} chose type {chosen}, which has no node on"
                    " the frontier; choose one with frontier.sizes > 0"
                )
            first, last = run_type(state, chosen)
            batches.append((chosen, first, last))
            done += last - first
        order = [state.queue[first:last] for _, first, last in batches]
        sizes = [last - first for _, first, last in batches]
        return Schedule(
            order=np.concatenate([*order, np.zeros(0, np.int32)]),
            batch_start=np.cumsum([0, *sizes], dtype=np.int32),
            batch_type=np.array([each for each, _, _ in batches], np.int32),
            policy=self.name,
        )


def is_policy(value: object) -> bool:
    """Whether an object implements the protocol `Policy`."""
    # A policy class has the attributes of the protocol, too.
    return isinstance(value, Policy) and not isinstance(value, type)


def require_policy(value: object) -> None:
    """Checks that an object implements the protocol `Policy`.

    Args:
        value: The object.

    Raises:
        PolicyError: It does not implement the protocol.
    """
    if not is_policy(value):
        raise PolicyError(
            "a policy is an object with a name and a method schedule(structure), but"
            f" this is {shown(value)}, of type {type(value).__name__}; get one by"
            " eb.get_policy('greedy') or eb.load_policy(path)"
        )


_MARK = "_schedules_are_valid"


def schedules_are_valid(policy_class: PolicyClass) -> PolicyClass:
    """Marks a policy class whose schedules need no check; not its subclasses.

    The schedules of a policy that wraps another one (its attribute `policy`) are as
    valid as those of the wrapped policy. Calls of `schedule` check the graph instead,
    because compiled code trusts it.

    Args:
        policy_class: The class.

    Returns:
        The class.
    """
    schedule = policy_class.schedule  # type: ignore[attr-defined]

    @wraps(schedule)
    def checked(self: Any, structure: GraphStructure) -> Schedule:
        check_structure(PolicyError, "what a policy schedules", structure)
        found: Schedule = schedule(self, structure)
        return found

    policy_class.schedule = checked  # type: ignore[attr-defined]
    setattr(policy_class, _MARK, True)
    return policy_class


def needs_check(policy: Any) -> bool:
    """Whether a policy, or one that it wraps, may return an invalid schedule."""
    while policy is not None:
        if _MARK not in vars(type(policy)):
            return True
        policy = getattr(policy, "policy", None)
    return False


def reject_invalid(
    schedule: Schedule, structure: GraphStructure, policy: Policy
) -> Schedule:
    """Checks the schedule that a third-party policy returned.

    Args:
        schedule: The schedule that the policy returned.
        structure: The graph that it was made for.
        policy: The policy.

    Returns:
        The schedule, its arrays as contiguous int32 for compiled code.

    Raises:
        PolicyError: It is not a valid schedule of this graph.
    """
    name = getattr(policy, "name", type(policy).__name__)
    if not isinstance(schedule, Schedule):
        raise PolicyError(
            f"policy {name!r} returned {type(schedule).__name__}, which is not a"
            " schedule; return edbatch.schedule.Schedule(order, batch_start,"
            " batch_type, name)"
        )
    given: dict[str, Any] = {}
    for field in ("order", "batch_start", "batch_type"):
        array = getattr(schedule, field)
        kind = array.dtype.kind if isinstance(array, np.ndarray) else ""
        if kind not in ("i", "u") or array.ndim != 1:
            raise PolicyError(
                f"policy {name!r} returned a schedule whose {field} is {shown(array)},"
                f" of type {type(array).__name__}; it must be a one-dimensional array"
                " of integers, np.array(..., np.int32)"
            )
        if array.size and not np.iinfo(np.int32).min <= array.min() <= array.max() <= (
            np.iinfo(np.int32).max
        ):
            raise PolicyError(
                f"policy {name!r} returned a schedule whose {field} has numbers beyond"
                f" those of np.int32: {shown(array)}; number nodes and types from 0"
            )
        given[field] = np.ascontiguousarray(array, np.int32)
    schedule = replace(schedule, **given)
    try:
        check_schedule(schedule, structure)
    except AssertionError as error:
        raise PolicyError(
            f"policy {name!r} returned a schedule that breaks a rule ({error}); run"
            " every node once, in batches of one type, after all that it reads"
            " (FrontierPolicy does)"
        ) from None
    return schedule


__all__ = [
    "Frontier",
    "FrontierPolicy",
    "Policy",
    "frontier_size",
    "remaining_size",
]
