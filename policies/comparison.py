"""Compares policies on the same minibatches: batches and scheduling time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from edbatch.arguments import check_number, list_of
from edbatch.errors import PolicyError, shown
from edbatch.graph.structure import GraphStructure
from edbatch.graph.structure_arguments import structures_of
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.lower_bound import lower_bound
from edbatch.schedule.policy import Policy, needs_check, reject_invalid
from edbatch.schedule.schedule import Schedule


@dataclass(frozen=True)
class Comparison:
    """One policy's row of a comparison.

    Attributes:
        policy: The policy's name.
        batches: Number of batches of each minibatch.
        mean_batches: Mean of `batches`.
        mean_lower_bound: Mean lower bound; no policy has a smaller mean.
        mean_ratio: Mean ratio of batches to lower bound over the minibatches.
        worst_ratio: Largest ratio of batches to lower bound of one minibatch.
        unseen_states: Total number of steps in states that training did not see.
        schedule_us_per_node: Median scheduling time per node of a minibatch, in
            microseconds. Includes computing the graph's cached properties, but not
            compilation.

    Example:
        >>> from edbatch.policies import Depth, compare
        >>> from edbatch.schedule.examples import tree
        >>> [row] = compare([Depth()], [tree("((ab)cb)c")])
        >>> row.policy, row.mean_batches, row.mean_ratio
        ('depth', 4.0, 1.0)
    """

    policy: str
    batches: tuple[int, ...]
    mean_batches: float
    mean_lower_bound: float
    mean_ratio: float
    worst_ratio: float
    unseen_states: int
    schedule_us_per_node: float


def meets_bounds(policy: Policy, structures: Sequence[GraphStructure]) -> bool:
    """Returns whether a policy meets the lower bound on every minibatch.

    Args:
        policy: The policy.
        structures: The minibatches.

    Returns:
        Whether the number of batches of each schedule equals the lower bound.

    Raises:
        PolicyError: `structures` is not a list of graph structures, or a custom policy
            returned an invalid schedule.

    Example:
        >>> from edbatch.policies import Greedy
        >>> from edbatch.schedule.examples import tree
        >>> meets_bounds(Greedy(), [tree("((ab)cb)c")])
        True
        >>> meets_bounds(Greedy(), [tree("(((a)b)c((a)c)b)d")])
        False
    """
    given = structures_of(PolicyError, "the minibatches", structures)
    return all(
        _schedule(policy, each).num_batches == lower_bound(each) for each in given
    )


def compare(
    policies: Sequence[Policy], structures: Sequence[GraphStructure], repeats: int = 3
) -> list[Comparison]:
    """Schedules the same minibatches with several policies.

    Args:
        policies: The policies.
        structures: The minibatches, each with at least one node.
        repeats: How many times to time each schedule.

    Returns:
        One row per policy, in the order of `policies`.

    Raises:
        PolicyError: `policies` is not a list of policies, or `structures` is not a list
            of graph structures; there is no minibatch, or one has no nodes; `repeats`
            is less than 1; or a custom policy returned an invalid schedule.

    Example:
        >>> from edbatch.policies import Agenda, Depth
        >>> from edbatch.schedule.examples import tree
        >>> rows = compare([Depth(), Agenda()], [tree("((ab)cb)c")])
        >>> [(row.policy, row.mean_batches, row.worst_ratio) for row in rows]
        [('depth', 4.0, 1.0), ('agenda', 4.0, 1.0)]
    """
    policies = list_of(PolicyError, "policies of a comparison", policies, "a policy")
    for each in policies:
        if isinstance(each, type) or not callable(getattr(each, "schedule", None)):
            raise PolicyError(
                f"compare takes policies, but this is {shown(each)}, of type"
                f" {type(each).__name__}; write edbatch.policies.Greedy() for the"
                " heuristic, or edbatch.policies.load_policy(path)"
            )
    structures = structures_of(PolicyError, "minibatches of a comparison", structures)
    if not structures or not all(each.num_nodes for each in structures):
        raise PolicyError(
            "a comparison needs minibatches with nodes but there are none, or an empty"
            " one; leave that out"
        )
    check_number(PolicyError, "repeats of a comparison", repeats, 1, whole=True)
    with keyboard_interrupts():
        bounds = [lower_bound(each) for each in structures]
        return [_row(policy, structures, bounds, repeats) for policy in policies]


def _row(
    policy: Policy,
    structures: Sequence[GraphStructure],
    bounds: Sequence[int],
    repeats: int,
) -> Comparison:
    for each in structures:
        policy.schedule(each)  # compiles first, which would exceed a search's budget
    schedules = [_schedule(policy, each) for each in structures]
    batches = [each.num_batches for each in schedules]
    ratios = [b / low for b, low in zip(batches, bounds, strict=True)]
    times = []
    for structure in [*structures] * repeats:
        fresh = replace(structure)  # without cached properties
        start = time.perf_counter()
        policy.schedule(fresh)
        times.append((time.perf_counter() - start) * 1e6 / structure.num_nodes)
    return Comparison(
        policy=policy.name,
        batches=tuple(batches),
        mean_batches=fmean(batches),
        mean_lower_bound=fmean(bounds),
        mean_ratio=fmean(ratios),
        worst_ratio=max(ratios),
        unseen_states=sum(each.unseen_states for each in schedules),
        schedule_us_per_node=median(times),
    )


def _schedule(policy: Policy, structure: GraphStructure) -> Schedule:
    found = policy.schedule(structure)
    if needs_check(policy):
        found = reject_invalid(found, structure, policy)
    return found
