"""Beam search on top of any policy: fewer batches for milliseconds of planning time.

A beam search (`edbatch.policies.search.beam`) starts from the policy's number of
batches and looks for fewer, with the policy's weights of the smoothed bound and three
variations of them. Four width-4 beams with different weights beat one of width 16, and
share the states of instances (word lattices of 32 sentences of Weibo: 1.156 times the
bound in 20 ms with four beams of width 4, 1.170 in 16 ms with one of width 8, 1.23
without a search). While time remains, the beams run again, four times as wide.
"""

import functools
import time
from dataclasses import dataclass

import numpy as np

from edbatch.arguments import is_positive, is_whole
from edbatch.errors import PolicyError, shown
from edbatch.graph.structure import GraphStructure
from edbatch.kernel import kernel
from edbatch.policies.cost.model import CostModel, require_costs
from edbatch.policies.fsm.evaluator import cost_of
from edbatch.policies.fsm.state_machine import StateMachine
from edbatch.policies.search.beam import EXHAUSTED, FOUND, BeamResult, search_beam
from edbatch.policies.search.instance_graph import instance_graph
from edbatch.policies.search.instance_states import new_states
from edbatch.policies.smooth_bound.weights import EQUAL_WEIGHTS
from edbatch.schedule.examples import chain
from edbatch.schedule.frontier import collect, run_type, start_frontier
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.lower_bound import longest_chains
from edbatch.schedule.policy import Policy, require_policy, schedules_are_valid
from edbatch.schedule.schedule import Schedule

_FIRST_WIDTH = 4
_WIDEST = 4096


@schedules_are_valid
@dataclass(frozen=True)
class BeamSearch:
    """A policy with a search on top; never more batches than the policy alone.

    With costs, the search minimises predicted time instead of the number of batches.
    With a time budget, the result depends on the speed of the machine; with a width, it
    does not.

    Attributes:
        policy: The policy that runs first.
        budget_ms: Milliseconds per schedule, including the policy's own time; the
            search checks it between layers, about every millisecond.
        width: Number of states that the search keeps per layer, regardless of time;
            overrides `budget_ms`.
        costs: Measured costs of batches, as from ``edbatch calibrate``.

    Raises:
        PolicyError: The budget or the width is not positive, the width is not a whole
            number, `policy` is not a policy, or `costs` is not a `CostModel`.

    Example:
        >>> from edbatch.policies import Depth
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("(((a)b)c((a)c)b)d")
        >>> Depth().schedule(graph).num_batches
        6
        >>> schedule = BeamSearch(Depth(), width=8).schedule(graph)
        >>> schedule.num_batches, schedule.policy
        (5, 'search')
    """

    policy: Policy
    budget_ms: float = 20.0
    width: int | None = None
    costs: CostModel | None = None

    def __post_init__(self) -> None:
        require_policy(self.policy)
        require_costs(self.costs)
        if not is_positive(self.budget_ms):
            raise PolicyError(
                f"a search has a budget of milliseconds above 0 but this is"
                f" {shown(self.budget_ms)}; use the policy itself for no search"
            )
        if self.width is not None and not (is_whole(self.width) and self.width >= 1):
            raise PolicyError(
                "a search keeps a whole number of states per layer, 1 or more, but its"
                f" width is {shown(self.width)}; leave it out to go by time"
            )

    @property
    def name(self) -> str:
        """Short name for tables, such as ``fsm-fall+search``."""
        return f"{self.policy.name}+search"

    @keyboard_interrupts()
    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph.

        Args:
            structure: The graph.

        Returns:
            The policy's schedule, or one with fewer batches (with costs, less overhead
            of batches and no more predicted time) whose `policy` is ``"search"``.

        Raises:
            PolicyError: Raised by the policy, or a type has no measured costs.
        """
        _compile()
        began = time.perf_counter()
        schedule = self.policy.schedule(structure)
        keys = structure.type_keys
        cost = None if self.costs is None else self.costs.batch_weights(keys)
        limit = cost_of(schedule.batch_type, cost)
        if limit <= _cost_bound(structure, cost) + _EQUAL:
            return schedule
        search = Search(structure, self.policy, limit, cost=cost)
        if self.width is not None:
            for variation in range(NUM_VARIATIONS):
                if not search.is_proven:
                    search.run(self.width, variation)
        else:
            self._run_for_time(search, began)
        if search.actions is None:
            return schedule
        found = schedule_of(structure, search.actions)
        if self.costs is not None and (
            self.costs.schedule_us(found, keys) > self.costs.schedule_us(schedule, keys)
        ):
            return schedule  # the other has less overhead, but takes more time
        return found

    def _run_for_time(self, search: "Search", began: float) -> None:
        """Runs beams of increasing width until the time budget is spent."""
        width = _FIRST_WIDTH
        while width <= _WIDEST:
            for variation in range(NUM_VARIATIONS):
                spent_ms = (time.perf_counter() - began) * 1e3
                if search.is_proven or spent_ms >= self.budget_ms:
                    return
                search.run(width, variation, max_ms=self.budget_ms - spent_ms)
            width *= 4


@functools.cache
def _compile() -> None:
    """Compiles a search, so that compilation does not count against a budget."""
    structure = chain("ab")
    search = Search(structure, None, structure.num_nodes + 1)
    search.run(_FIRST_WIDTH)
    schedule_of(structure, np.array([0, 1], np.int32))


class Search:
    """Beam searches on one minibatch that share the states of its instances.

    Attributes:
        actions: The sequence of types of the best schedule found; None if none was
            found.
        limit: The fewest batches known, or the least cost.
        is_proven: Whether `limit` is proven optimal.
    """

    def __init__(
        self,
        structure: GraphStructure,
        policy: Policy | None,
        limit: float,
        instances: np.ndarray | None = None,
        cost: np.ndarray | None = None,
    ) -> None:
        self.limit = limit
        self._cost = cost
        self.actions: np.ndarray | None = None
        self.is_proven = False
        self._graph = instance_graph(structure)
        self._states, start = new_states(self._graph)
        self._start = start if instances is None else start[instances]
        if isinstance(policy, StateMachine):
            _, weight, log2_p = policy.bind(structure.type_keys)
        else:
            nothing = np.empty(0, np.int32)
            weight, log2_p = EQUAL_WEIGHTS.arrays(nothing, structure.num_types)
        self._variations = _vary(weight, log2_p)

    @property
    def chains(self) -> np.ndarray:
        """Longest chain of each type in each instance; ``[B, T] int32``."""
        return self._states.chain[self._start, :-1]

    def run(self, width: int, variation: int = 0, max_ms: float = np.inf) -> BeamResult:
        """Searches for fewer batches than `limit`, and updates the attributes.

        Args:
            width: How many states to keep per layer.
            variation: Variation of the weights, below `NUM_VARIATIONS`; 0 for the
                policy's own weights.
            max_ms: Time limit, in milliseconds.

        Returns:
            The result of the search.
        """
        result = search_beam(
            self._graph,
            self._states,
            self._start,
            *self._variations[variation],
            width,
            self.limit,
            max_ms,
            self._cost,
        )
        self._states = result.states
        if result.outcome == FOUND:
            self.actions = result.actions
            self.limit = cost_of(result.actions, self._cost)
        if result.outcome in (FOUND, EXHAUSTED):
            self.is_proven = self.is_proven or result.is_complete
        return result


_EQUAL = 1e-9  # costs that differ by less are equal up to rounding


def _cost_bound(structure: GraphStructure, cost: np.ndarray | None) -> float:
    """Lower bound on the cost of any schedule."""
    chains = longest_chains(structure)
    return float(chains.sum() if cost is None else chains @ cost)


NUM_VARIATIONS = 4


def _vary(weight: np.ndarray, log2_p: int) -> list[tuple[np.ndarray, int]]:
    """Returns the weights and variations: flatter, more weight on the path, smaller p.

    The variations were chosen by trial on the workloads with a gap to the bound.
    """
    types = weight[:-1]
    return [
        (weight, log2_p),
        (np.append(np.sqrt(types), 2.0), 3),
        (np.append(np.ones_like(types), 2.0), 2),
        (np.append(np.sqrt(types), 4.0), 2),
    ]


def schedule_of(structure: GraphStructure, actions: np.ndarray) -> Schedule:
    """Builds the schedule that runs a sequence of types.

    Args:
        structure: The graph.
        actions: Types in order, each with a node on the frontier at its turn;
            ``[batches] int32``.

    Returns:
        The schedule.
    """
    order, start, kind = _run_actions(start_frontier(structure), actions)
    return Schedule(order, start, kind, "search")


@kernel
def _run_actions(state, actions):
    batches = np.empty((len(actions), 3), np.int32)
    for step in range(len(actions)):
        first, last = run_type(state, actions[step])
        batches[step, 0] = actions[step]
        batches[step, 1] = first
        batches[step, 2] = last
    return collect(state, batches, len(actions))
