"""Exact search: a proven minimum of batches, or a tighter lower bound.

A beam search that drops only states that cannot win proves its result
(`edbatch.policies.search.beam`). For a whole minibatch this takes too much memory, but
a part of it is often enough: a schedule of the minibatch also schedules each part of
it, so the optimum of a part is a lower bound for the whole. Parts grow by the instance
that raises the lower bound most, until the optimum of the part equals the number of
batches of a known schedule, which is then optimal, or until the part is too large.

Gain: it shows how far a policy is from the optimum where the lower bound cannot. On
minibatches of two sentences of word lattices, it proves the search optimal on 50 of 50
and the learned policy on 34 (docs/results-policies.md).

A layer costs O(W F B) for W kept states (see `edbatch.policies.search.beam`). In the
worst case a proof has to keep all states, so W is limited to `width`; a part that needs
more states is not solved.
"""

from dataclasses import dataclass

import numpy as np

from edbatch.arguments import check_number
from edbatch.errors import PolicyError
from edbatch.graph.structure import GraphStructure
from edbatch.graph.structure_arguments import check_structure
from edbatch.policies.search.beam_search import NUM_VARIATIONS, Search, schedule_of
from edbatch.schedule.lower_bound import lower_bound
from edbatch.schedule.policy import (
    Policy,
    needs_check,
    reject_invalid,
    require_policy,
)
from edbatch.schedule.schedule import Schedule

_NARROW = 64


@dataclass(frozen=True)
class Optimum:
    """Upper and lower bound on the fewest batches of a minibatch.

    Attributes:
        schedule: The schedule with the fewest batches found.
        bound: No schedule has fewer batches; at least the lower bound.
        part: Number of instances in the part that proves `bound`.

    Example:
        >>> from edbatch.policies import Depth, find_optimum
        >>> from edbatch.schedule.examples import tree
        >>> optimum = find_optimum(tree("((ab)cb)c"), Depth())
        >>> optimum.schedule.num_batches, optimum.is_proven
        (4, True)
    """

    schedule: Schedule
    bound: int
    part: int

    @property
    def is_proven(self) -> bool:
        """Whether the schedule is proven optimal."""
        return self.schedule.num_batches == self.bound


def find_optimum(
    structure: GraphStructure,
    policy: Policy,
    *,
    width: int = 20_000,
    max_ms: float = 1_000.0,
) -> Optimum:
    """Searches for the fewest batches of a minibatch and a proof of optimality.

    Args:
        structure: The minibatch.
        policy: Its schedule is the first upper bound; its weights, if any, guide the
            search.
        width: Maximum number of states to keep per layer.
        max_ms: Time limit of each search, in milliseconds: there are a few narrow
            searches of the minibatch, and a narrow and a wide search of each part. A
            part counts as too large if neither search proves its optimum.

    Returns:
        The best schedule and a proven bound.

    Raises:
        PolicyError: An argument has the wrong type or is out of range, or the policy
            returned an invalid schedule.

    Example:
        >>> from edbatch.policies import Depth
        >>> from edbatch.schedule.examples import tree
        >>> optimum = find_optimum(tree("(((aa)ba)b(aa)b)b"), Depth())
        >>> optimum.bound, optimum.is_proven
        (4, True)
    """
    check_structure(PolicyError, "the graph of find_optimum", structure)
    require_policy(policy)
    check_number(PolicyError, "the width of find_optimum", width, 1, whole=True)
    check_number(PolicyError, "max_ms of find_optimum", max_ms, 0)
    best = policy.schedule(structure)
    if needs_check(policy):
        best = reject_invalid(best, structure, policy)
    bound = lower_bound(structure)
    search = Search(structure, policy, best.num_batches)
    for variation in range(NUM_VARIATIONS):
        if search.limit > bound and not search.is_proven:
            search.run(_NARROW, variation, max_ms=max_ms)
    part = num_instances = len(structure.instance_nodes)
    if search.is_proven:
        bound = int(search.limit)
    else:
        for instances in _parts(search.chains):
            proven = _solve(structure, policy, instances, width, max_ms)
            if proven is None:
                break
            if proven > bound:
                bound, part = proven, len(instances)
            if bound == search.limit or len(instances) == num_instances:
                break
    if search.actions is not None:
        best = schedule_of(structure, search.actions)
    return Optimum(best, bound, part)


def _parts(chains: np.ndarray) -> list[np.ndarray]:
    """Returns growing parts, each with the next instance that raises the bound most.

    Args:
        chains: Longest chain of each type in each instance; ``[B, T]``.
    """
    chosen: list[int] = []
    longest = np.zeros(chains.shape[1], chains.dtype)
    for _ in range(len(chains)):
        raised = np.maximum(chains, longest).sum(axis=1) * (chains.sum() + 1)
        raised += chains.sum(axis=1)  # breaks ties: longest chains first
        raised[chosen] = -1
        chosen.append(int(raised.argmax()))
        longest = np.maximum(longest, chains[chosen[-1]])
    return [np.array(chosen[: k + 1]) for k in range(len(chosen))]


def _solve(
    structure: GraphStructure,
    policy: Policy,
    instances: np.ndarray,
    width: int,
    max_ms: float,
) -> int | None:
    """Returns the optimum of a part, or None if the part is too large."""
    search = Search(structure, policy, structure.num_nodes + 1, instances)
    search.run(_NARROW, max_ms=max_ms)
    if not search.is_proven:
        search.run(width, max_ms=max_ms)
    return int(search.limit) if search.is_proven else None
