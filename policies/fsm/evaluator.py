"""Evaluation of tables during training: batches on held-out minibatches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from edbatch.graph.structure import GraphStructure
from edbatch.policies.fsm.machine_state import MachineState
from edbatch.policies.fsm.q_learning import QTable, best_actions
from edbatch.policies.fsm.state_index import index_of
from edbatch.policies.fsm.table_run import Binding, run_table
from edbatch.policies.fsm.trie import sequences
from edbatch.policies.smooth_bound.weights import BoundWeights
from edbatch.schedule.lower_bound import longest_chains
from edbatch.schedule.policy import Policy

# Sums of costs that differ by a smaller relative amount are equal up to rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class EvalResult:
    """The result of a table on the held-out minibatches.

    Attributes:
        batches: Mean batches per minibatch.
        unseen: Total number of steps in states that are not in the table.
        trial: Trial after which the table was evaluated.
        meets_bounds: Whether every minibatch meets its lower bound.
        states: The table, as states of a machine.
        weights: Weights of the smoothed bound.
    """

    batches: float
    unseen: int
    trial: int
    meets_bounds: bool
    states: tuple[MachineState, ...]
    weights: BoundWeights

    @property
    def rank(self) -> tuple[float, int, int]:
        """Sort key of results; smaller is better."""
        return self.batches, self.unseen, self.trial


class Evaluator:
    """Runs tables and heuristics on the held-out minibatches.

    With a cost per type, costs replace numbers of batches everywhere.
    """

    def __init__(
        self,
        held_out: Sequence[GraphStructure],
        kind: int,
        num_types: int,
        cost: np.ndarray | None = None,
    ) -> None:
        self._graphs = held_out
        self._cost = cost
        self._bounds = [_bound(each, cost) for each in held_out]
        self._kind = kind
        self._type_of = np.arange(num_types, dtype=np.int32)
        self.bound = mean(self._bounds)

    def __call__(self, table: QTable, weights: BoundWeights, trial: int) -> EvalResult:
        """Evaluates a table with the weights that it was learned with."""
        action = best_actions(table)
        num_types = len(self._type_of)
        binding = Binding(self._type_of, *weights.arrays(self._type_of, num_types))
        start, flat = sequences(table.trie)
        index = index_of(start, flat)
        batches = []
        unseen = 0
        for each in self._graphs:
            *_, batch_type, strange = run_table(
                each, self._kind, binding, index, action
            )
            batches.append(cost_of(batch_type, self._cost))
            unseen += strange
        return EvalResult(
            batches=mean(batches),
            unseen=unseen,
            trial=trial,
            meets_bounds=all(map(self._meets, batches, self._bounds)),
            states=machine_states(table, action),
            weights=weights,
        )

    def _meets(self, batches: float, bound: float) -> bool:
        if self._cost is None:
            return batches == bound
        return batches <= bound + _ROUNDING * max(1.0, bound)

    def heuristic(self, policy: Policy) -> float:
        """Returns the mean batches of a policy on the held-out minibatches."""
        return mean(
            cost_of(policy.schedule(each).batch_type, self._cost)
            for each in self._graphs
        )


def cost_of(batch_type: np.ndarray, cost: np.ndarray | None) -> float:
    """Returns the cost of batches of these types; their number if `cost` is None."""
    return float(len(batch_type) if cost is None else cost[batch_type].sum())


def _bound(structure: GraphStructure, cost: np.ndarray | None) -> float:
    chains = longest_chains(structure)
    return float(chains.sum() if cost is None else chains @ cost[: len(chains)])


def machine_states(table: QTable, action: np.ndarray) -> tuple[MachineState, ...]:
    """Converts a table to the states of a machine.

    Args:
        table: The table.
        action: The action in each state; ``[S]``.

    Returns:
        The states.
    """
    start, flat = sequences(table.trie)
    symbols = flat.tolist()
    visits = table.visits.sum(axis=1).tolist()
    return tuple(
        MachineState(
            frontier=tuple(symbols[start[s] : start[s + 1]]),
            action=chosen,
            visits=visits[s],
            value=round(float(table.value[s, chosen]), 4),
        )
        for s, chosen in enumerate(action.tolist())
    )


def mean(values: Iterable[float]) -> float:
    """Returns the mean of at least one value."""
    values = list(values)
    return float(sum(values)) / len(values)
