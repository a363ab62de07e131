"""The guard: takes the best of a policy's schedule and the heuristics' schedules.

A learned policy is better on average, but not necessarily on each minibatch. Its
schedule is compared with the schedules of the greedy, agenda, agenda-remaining and
depth heuristics for the same minibatch, unless it meets the lower bound; with measured
costs it is always compared.

Gain: the mean ratio to the lower bound is 0.003 to 0.005 lower on trees of two types
and CLEVR programs and unchanged on lattices (docs/results-policies.md), with a
guarantee for each minibatch. Cost: 0.1 to 0.3 us per node; recording takes 2 us per
node.
"""

from dataclasses import dataclass

from edbatch.graph.structure import GraphStructure
from edbatch.policies.cost.model import CostModel, require_costs
from edbatch.policies.fsm.state_machine import StateMachine
from edbatch.policies.heuristics import Agenda, AgendaRemaining, Depth, Greedy
from edbatch.policies.search.beam_search import BeamSearch
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.lower_bound import lower_bound
from edbatch.schedule.policy import Policy, require_policy, schedules_are_valid
from edbatch.schedule.schedule import Schedule

_HEURISTICS = (Greedy(), Agenda(), AgendaRemaining(), Depth())


@schedules_are_valid
@dataclass(frozen=True)
class BestOfHeuristics:
    """A policy that never runs more batches than any of the heuristics.

    Attributes:
        policy: The policy to guard.
        costs: Measured costs, as from ``edbatch calibrate``. With costs, schedules are
            compared by predicted time instead of by number of batches.

    Raises:
        PolicyError: `policy` is not a policy, or `costs` is not a `CostModel`.

    Example:
        >>> from edbatch.policies import Depth
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("(((a)b)c((a)c)b)d")
        >>> Depth().schedule(graph).num_batches
        6
        >>> schedule = BestOfHeuristics(Depth()).schedule(graph)
        >>> schedule.num_batches, schedule.policy
        (5, 'greedy')
    """

    policy: Policy
    costs: CostModel | None = None

    def __post_init__(self) -> None:
        require_policy(self.policy)
        require_costs(self.costs)

    @property
    def name(self) -> str:
        """The policy's name."""
        return self.policy.name

    @keyboard_interrupts()
    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph.

        Args:
            structure: The graph.

        Returns:
            The schedule with the fewest batches, or the least predicted time; the
            policy's own unless another is better. Its `policy` names the policy that
            made it.

        Raises:
            PolicyError: Raised by the policy, or a type has no measured costs.
        """
        best = self.policy.schedule(structure)
        if self.costs is None and best.num_batches <= lower_bound(structure):
            return best
        least = self._cost(best, structure)
        for heuristic in _HEURISTICS:
            if type(heuristic) is not type(self.policy):
                found = heuristic.schedule(structure)
                cost = self._cost(found, structure)
                if cost < least:
                    best, least = found, cost
        return best

    def _cost(self, schedule: Schedule, structure: GraphStructure) -> float:
        if self.costs is None:
            return schedule.num_batches
        return self.costs.schedule_us(schedule, structure.type_keys)


def guarded(policy: Policy, costs: CostModel | None = None) -> Policy:
    """Guards a learned or searching policy, as `edbatch.batch` does.

    Args:
        policy: The policy.
        costs: As for `BestOfHeuristics`.

    Returns:
        The guarded policy; any other policy, such as a heuristic, unchanged.

    Example:
        >>> guarded(Depth()).name
        'depth'
    """
    is_learned = isinstance(policy, StateMachine | BeamSearch)
    return BestOfHeuristics(policy, costs) if is_learned else policy
