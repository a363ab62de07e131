"""Training: from sampled minibatches to a state machine, judged on others."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata

import numpy as np

from edbatch.errors import PolicyError
from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure
from edbatch.policies.encoding import encoding_id
from edbatch.policies.heuristics import Agenda, Depth, Greedy
from edbatch.policies.interrupt import deferred_interrupt
from edbatch.policies.q_learning import QTable, best_actions, new_table, run_trial
from edbatch.policies.random_stream import new_stream
from edbatch.policies.remaining_bound import chains_below
from edbatch.policies.state_machine import MachineState, StateMachine, run_machine
from edbatch.policies.training_record import TrainingRecord
from edbatch.policies.trie import sequences
from edbatch.schedule.frontier import FrontierState, new_frontier
from edbatch.schedule.lower_bound import lower_bound
from edbatch.schedule.policy import Policy

Progress = Callable[[int, int, float, float], None]

_EVALUATIONS = 40
_VERSIONS_OF = ("edbatch", "numba", "numpy")


def train_policy(
    graphs: Sequence[GraphStructure],
    held_out: Sequence[GraphStructure],
    *,
    encoding: str = "sort",
    trials: int = 1000,
    seed: int = 0,
    n_step: int = 4,
    alpha: float = 0.5,
    learning_rate: float = 0.05,
    epsilon: float = 0.3,
    workload: str = "",
    progress: Progress | None = None,
) -> StateMachine:
    """Trains a state machine by Q-learning; see `edbatch.policies.q_learning`.

    Trial k runs on minibatch k modulo their number, with random actions that become
    rarer. From time to time the table is judged by its number of batches on the
    held-out minibatches, with no random actions, and the best one is kept: of equal
    ones that with fewer unseen states, then the earlier. Training ends when every
    held-out minibatch meets its lower bound and has no unseen state.

    A table that is worse than the greedy heuristic is not returned; instead a machine
    without states is, which follows that heuristic, and its training record says so.

    Args:
        graphs: Minibatches to train on, of the size that will be run: a policy that was
            trained on single instances is poor on minibatches.
        held_out: Minibatches to judge by, of the same model.
        encoding: `"base"`, `"max"` or `"sort"`.
        trials: How many episodes to run at most.
        seed: Gives the same policy, bit for bit, for the same graphs.
        n_step: Steps before a return is estimated by the table.
        alpha: Weight of the ratio of the sufficient condition in the reward.
        learning_rate: Least share of a new return in a table entry.
        epsilon: Share of random actions in the first trial; falls linearly to 0.
        workload: What this is, for the training record.
        progress: Called as ``progress(trial, trials, batches, bound)`` with the mean
            batches and lower bound on the held-out minibatches after each judgement.

    Returns:
        The machine, with a `TrainingRecord`. After `KeyboardInterrupt` it is the best
        one so far, and its record says that training was interrupted.

    Raises:
        PolicyError: There are no graphs, or they belong to different models, or an
            argument is out of its range.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> machine = train_policy([graph], [graph])
        >>> machine.training.stopped, machine.schedule(graph).num_batches
        ('lower bound', 4)
    """
    started = time.perf_counter()
    kind = encoding_id(encoding)
    _check_arguments(graphs, held_out, trials, n_step, alpha, learning_rate, epsilon)
    types = common_types([*graphs, *held_out])
    starts = [_Start.of(each, len(types)) for each in graphs]
    judge = _Judge(held_out, kind, len(types))
    table = new_table(len(types))
    stream = new_stream(seed)
    judged_after = set(_judgements(trials))
    best: _Verdict | None = None
    trial = 0
    stopped = "trials"
    try:
        with deferred_interrupt() as check_interrupt:
            while trial < trials and stopped == "trials":
                start = starts[trial % len(starts)]
                table = run_trial(
                    table,
                    start.state(),
                    start.below,
                    kind,
                    float(alpha),
                    epsilon * (1 - trial / trials),
                    stream,
                    int(n_step),
                    float(learning_rate),
                )
                trial += 1
                if trial in judged_after:
                    verdict = judge(table, trial)
                    if best is None or verdict.rank < best.rank:
                        best = verdict
                    if verdict.meets_bounds and not verdict.unseen:
                        stopped = "lower bound"
                    if progress is not None:
                        progress(trial, trials, verdict.batches, judge.bound)
                check_interrupt()
    except KeyboardInterrupt:
        stopped = "interrupted"
    greedy = judge.heuristic(Greedy())
    worse = best is not None and best.batches > greedy
    if best is None or worse:
        best = judge(new_table(len(types)), 0)
    if stopped == "trials" and best.meets_bounds:
        stopped = "lower bound"  # if only with the help of the greedy heuristic
    record = TrainingRecord(
        workload=workload,
        encoding=encoding,
        seed=int(seed),
        n_step=int(n_step),
        alpha=float(alpha),
        learning_rate=float(learning_rate),
        epsilon=float(epsilon),
        trials=trial,
        max_trials=int(trials),
        best_trial=best.trial,
        minibatches=len(graphs),
        batch_size=_mean(len(each.instance_nodes) for each in graphs),
        held_out=len(held_out),
        held_out_batches=best.batches,
        held_out_lower_bound=judge.bound,
        held_out_depth=judge.heuristic(Depth()),
        held_out_agenda=judge.heuristic(Agenda()),
        held_out_greedy=greedy,
        held_out_unseen=best.unseen,
        stopped=stopped,
        worse_than_greedy=worse,
        elapsed_s=round(time.perf_counter() - started, 3),
        versions=tuple((name, _version(name)) for name in _VERSIONS_OF),
    )
    return StateMachine(types, encoding, best.states, record)


def common_types(graphs: Sequence[GraphStructure]) -> tuple[TypeKey, ...]:
    """Finds the types of graphs that one model recorded at different times.

    Args:
        graphs: At least one.

    Returns:
        The longest of their tuples of types; all others are its beginnings.

    Raises:
        PolicyError: Some graph's types are not.

    Example:
        >>> from edbatch.schedule.examples import chain
        >>> [str(key) for key in common_types([chain("a"), chain("ab")])]
        ['a/0', 'b/0']
    """
    types = max((each.type_keys for each in graphs), key=len)
    for k, each in enumerate(graphs):
        if each.type_keys != types[: len(each.type_keys)]:
            [strange, *_] = [
                ours
                for ours, theirs in zip(each.type_keys, types, strict=False)
                if ours != theirs
            ]
            raise PolicyError(
                "the graphs of one training have the types of one model, in one order,"
                f" but graph {k} has {strange} where another has"
                f" {types[each.type_keys.index(strange)]}; record all of them with the"
                " same batched function"
            )
    return types


@dataclass(frozen=True, eq=False)
class _Start:
    """A graph at the start of its execution, under all types of the model."""

    structure: GraphStructure
    num_types: int
    below: np.ndarray  # [N] int32

    @classmethod
    def of(cls, structure: GraphStructure, num_types: int) -> "_Start":
        start, consumers, _ = structure.consumers
        below = chains_below(structure.node_type, start, consumers, num_types)
        return cls(structure, num_types, below)

    def state(self) -> FrontierState:
        return new_frontier(
            self.structure.node_type, *self.structure.consumers, self.num_types
        )


@dataclass(frozen=True, eq=False)
class _Verdict:
    """How a table does on the held-out minibatches."""

    batches: float
    unseen: int
    trial: int
    meets_bounds: bool
    states: tuple[MachineState, ...]

    @property
    def rank(self) -> tuple[float, int, int]:
        return self.batches, self.unseen, self.trial


class _Judge:
    """Runs tables and heuristics on the held-out minibatches."""

    def __init__(
        self, held_out: Sequence[GraphStructure], kind: int, num_types: int
    ) -> None:
        self._graphs = held_out
        self._starts = [_Start.of(each, num_types) for each in held_out]
        self._bounds = [lower_bound(each) for each in held_out]
        self._kind = kind
        self._type_of = np.arange(num_types, dtype=np.int32)
        self.bound = _mean(self._bounds)

    def __call__(self, table: QTable, trial: int) -> _Verdict:
        action = best_actions(table)
        batches = []
        unseen = 0
        for start in self._starts:
            *_, batch_type, strange = run_machine(
                start.state(), self._kind, self._type_of, table.trie, action
            )
            batches.append(len(batch_type))
            unseen += int(strange)
        return _Verdict(
            batches=_mean(batches),
            unseen=unseen,
            trial=trial,
            meets_bounds=batches == self._bounds,
            states=machine_states(table, action),
        )

    def heuristic(self, policy: Policy) -> float:
        return _mean(policy.schedule(each).num_batches for each in self._graphs)


def machine_states(table: QTable, action: np.ndarray) -> tuple[MachineState, ...]:
    """Reads the states out of a table.

    Args:
        table: The table.
        action: What to do in each state; ``[S]``.

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


def _judgements(trials: int) -> Iterable[int]:
    """After which trials to judge: often at first, then evenly, and at the end."""
    every = math.ceil(trials / _EVALUATIONS)
    early = (2**k for k in range(every.bit_length()))
    return (*early, *range(every, trials, every), trials)


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return float(sum(values)) / len(values)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _check_arguments(
    graphs: Sequence[GraphStructure],
    held_out: Sequence[GraphStructure],
    trials: int,
    n_step: int,
    alpha: float,
    learning_rate: float,
    epsilon: float,
) -> None:
    for name, what in (("graphs", graphs), ("held_out", held_out)):
        if not what:
            raise PolicyError(
                f"training needs at least one minibatch in each of 'graphs' and"
                f" 'held_out' but {name!r} is empty; sample some more"
            )
    for name, value, low, high in (
        ("trials", trials, 1, math.inf),
        ("n_step", n_step, 1, math.inf),
        ("alpha", alpha, 0, math.inf),
        ("learning_rate", learning_rate, 0, 1),
        ("epsilon", epsilon, 0, 1),
    ):
        if not low <= value <= high:
            raise PolicyError(
                f"{name!r} is between {low} and {high} but is {value!r}; leave it out"
                " for the default"
            )
