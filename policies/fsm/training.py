"""Training: from sampled minibatches to a state machine, evaluated on others.

With the encoding `fall` the weights of the smoothed bound are tuned first
(`edbatch.policies.fsm.tuning`), then a table is learned on top (`.q_learning`); with
the other encodings there is only the table.

Gain, as mean ratio of batches to the lower bound on held-out minibatches (greedy, then
each part added to those before it; docs/results-policies.md): word lattices 1.398,
encoding 1.270, weights 1.233, table 1.231; CLEVR programs 1.159, 1.118, 1.090, 1.082;
trees of two types 1.131, then 1.065 with and without training.
"""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from os import PathLike
from typing import Any

import numpy as np

from edbatch.arguments import check_number, list_of
from edbatch.errors import PolicyError
from edbatch.graph.structure import GraphStructure
from edbatch.policies.comparison import meets_bounds
from edbatch.policies.cost.file import get_costs
from edbatch.policies.cost.model import CostModel
from edbatch.policies.fsm.checkpoint import (
    TrainingState,
    digest,
    load_checkpoint,
    save_checkpoint,
)
from edbatch.policies.fsm.encoding import FALL, encoding_id
from edbatch.policies.fsm.evaluator import EvalResult, Evaluator, mean
from edbatch.policies.fsm.q_learning import QTable, Rules, new_table, run_trial
from edbatch.policies.fsm.random_stream import new_stream
from edbatch.policies.fsm.settings import Settings, common_types, evaluations
from edbatch.policies.fsm.state_machine import StateMachine
from edbatch.policies.fsm.training_record import TrainingRecord
from edbatch.policies.fsm.tuning import next_generation, start_tuning
from edbatch.policies.heuristics import Agenda, AgendaRemaining, Depth, Greedy
from edbatch.policies.smooth_bound.remaining import chains_below
from edbatch.policies.smooth_bound.weights import BoundWeights
from edbatch.schedule.examples import tree
from edbatch.schedule.frontier import FrontierState, new_frontier
from edbatch.schedule.interrupt import deferred_interrupt, keyboard_interrupts

Progress = Callable[[int, int, float, float], None]

_VERSIONS_OF = ("edbatch", "numba", "numpy")


def train_policy(
    graphs: Sequence[GraphStructure],
    held_out: Sequence[GraphStructure],
    *,
    encoding: str = "fall",
    trials: int = 1000,
    seed: int = 0,
    n_step: int = 4,
    alpha: float = 0.5,
    learning_rate: float = 0.05,
    epsilon: float = 0.3,
    generations: int = 12,
    patience: int = 15,
    workload: str = "",
    progress: Progress | None = None,
    checkpoint: str | PathLike[str] | None = None,
    resume: bool = False,
    costs: CostModel | str | PathLike[str] | None = None,
    if_needed: bool = False,
) -> StateMachine:
    """Trains a state machine by Q-learning; see `edbatch.policies.fsm.q_learning`.

    Trial k runs on minibatch k modulo their number, with random actions that become
    rarer. From time to time the table is evaluated by its number of batches on the
    held-out minibatches, with no random actions, and the best one is kept: of equal
    ones that with fewer unseen states, then the earlier. Training ends when every
    held-out minibatch meets its lower bound and has no unseen state, or when the last
    `patience` evaluations brought nothing better.

    A table that is worse than the greedy heuristic is not returned; instead a machine
    without states is, which follows that heuristic, and its training record says so.

    Args:
        graphs: Minibatches to train on, of the size that will be run: a policy that was
            trained on single instances is poor on minibatches.
        held_out: Minibatches to evaluate on, of the same model.
        encoding: `"fall"`, `"sort"`, `"max"` or `"base"`.
        trials: How many episodes to run at most.
        seed: Gives the same policy, bit for bit, for the same graphs.
        n_step: Steps before a return is estimated by the table.
        alpha: Weight of the ratio of the sufficient condition in the reward; not used
            with `"fall"`, whose encoding says more.
        learning_rate: Least share of a new return in a table entry.
        epsilon: Share of random actions in the first trial; falls linearly to 0.
        generations: How often the weights of the smoothed bound are tuned, for
            `"fall"`.
        patience: After how many evaluations without improvement to stop.
        workload: What this is, for the training record.
        progress: Called as ``progress(trial, trials, batches, bound)`` with the mean
            batches and lower bound on the held-out minibatches after each evaluation.
        checkpoint: File that keeps the state of training, written at each evaluation
            and when training is interrupted.
        resume: Go on from that file; the policy is that of an uninterrupted training.
        costs: Measured costs, a file of ``edbatch calibrate``: then the policy learns
            to run batches of little cost, not few of them, and what is evaluated, shown
            and kept in the record is cost, in units of an average batch.
        if_needed: Train nothing where the greedy heuristic meets the lower bound on
            every minibatch: the machine then has no states and follows that heuristic.

    Returns:
        The machine, with a `TrainingRecord`. After `KeyboardInterrupt` it is the best
        one so far, and its record says that training was interrupted; only while Numba
        compiles, before training begins, that ends the call.

    Raises:
        PolicyError: There are no graphs, or they belong to different models, an
            argument is out of its range, or the checkpoint cannot be used.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> machine = train_policy([graph], [graph])
        >>> machine.training.stopped, machine.schedule(graph).num_batches
        ('lower bound', 4)
    """
    check_number(PolicyError, "'seed'", seed, whole=True)
    graphs = list_of(PolicyError, "'graphs'", graphs, "the structure of a graph")
    held_out = list_of(PolicyError, "'held_out'", held_out, "the structure of a graph")
    settings = Settings(
        encoding=encoding,
        trials=trials,
        seed=int(seed),
        n_step=n_step,
        alpha=alpha,
        learning_rate=learning_rate,
        epsilon=epsilon,
        generations=generations,
        patience=patience,
    )
    settings.check(graphs, held_out)
    measured = get_costs(costs)
    # Batches of least number have the longest chain of each type, so least cost, too.
    is_needed = (
        not if_needed or resume or not meets_bounds(Greedy(), [*graphs, *held_out])
    )
    if is_needed:
        warm_up(encoding)
    run = _Run(settings, graphs, held_out, progress, checkpoint, measured)
    if not is_needed:
        return run.machine("greedy", workload)
    if resume:
        if checkpoint is None:
            raise PolicyError(
                "training resumes from a checkpoint but 'checkpoint' is None; name the"
                " file that the interrupted training wrote"
            )
        run.state = load_checkpoint(checkpoint, run.identity)
    with keyboard_interrupts():
        stopped = run.finish()
        return run.machine(stopped, workload)


@functools.cache
def warm_up(encoding: str = "fall") -> None:
    """Compiles what training with an encoding runs, or loads it from Numba's cache.

    `train_policy` does so before its clock starts: the first time on a machine it takes
    up to a minute, and says nothing about the training.

    Args:
        encoding: As for `train_policy`.

    Example:
        >>> warm_up("sort")
    """
    settings = Settings(
        encoding=encoding,
        trials=1,
        seed=0,
        n_step=1,
        alpha=0.0,
        learning_rate=1.0,
        epsilon=1.0,
        generations=1,
        patience=1,
    )
    graph = tree("(((a)b)c((a)c)b)d")  # no schedule of it meets the bound
    run = _Run(settings, [graph], [graph], None, None, None)
    run.machine(run.finish(), "")


class _Run:
    """One training: its settings, its minibatches, and how far it has come."""

    def __init__(
        self,
        settings: Settings,
        graphs: Sequence[GraphStructure],
        held_out: Sequence[GraphStructure],
        progress: Progress | None,
        checkpoint: str | PathLike[str] | None,
        costs: CostModel | None,
    ) -> None:
        self._settings = settings
        self._graphs = graphs
        self._held_out = held_out
        self._progress = progress
        self._checkpoint = checkpoint
        self._kind = encoding_id(settings.encoding)
        self._types = common_types([*graphs, *held_out])
        self._cost = None if costs is None else costs.batch_weights(self._types)
        self._evaluator = Evaluator(held_out, self._kind, len(self._types), self._cost)
        self._began = time.perf_counter()
        self._in_step = False
        self.state = TrainingState(
            table=new_table(len(self._types)),
            stream=new_stream(settings.seed),
            tuning=None,
        )

    @functools.cached_property
    def _starts(self) -> "list[_Start]":
        return [_Start.of(each, len(self._types)) for each in self._graphs]

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint of this training must agree with."""
        # NumPy's numbers are Python's in JSON.
        settings = vars(self._settings).items()
        return {
            **{name: np.asarray(value).item() for name, value in settings},
            "graphs": digest(self._graphs),
            "held_out": digest(self._held_out),
            "costs": None if self._cost is None else self._cost.tolist(),
        }

    def finish(self) -> str:
        """Trains to the end; returns why it ended."""
        try:
            with keyboard_interrupts(), deferred_interrupt() as check_interrupt:
                if self._kind == FALL and not self.state.trial:
                    self._begin(check_interrupt)
                while (stopped := self._why_ended()) is None:
                    self._run_trial()
                    check_interrupt()
        except KeyboardInterrupt:
            stopped = "interrupted"
            # A second Ctrl-C may come in the middle of a step: no state to go on from.
            if not self._in_step:
                self._save()
        return stopped

    def _why_ended(self) -> str | None:
        """Tells why training is over, if it is."""
        state, best = self.state, self.state.best
        if best is not None:
            if best.meets_bounds and not best.unseen:
                return "lower bound"
            waited = sum(trial > best.trial for trial, _ in state.curve)
            if waited >= self._settings.patience:
                return "patience"
        return "trials" if state.trial == self._settings.trials else None

    def _begin(self, check_interrupt: Callable[[], None]) -> None:
        """Tunes the weights of the smoothed bound, unless equal ones are as good."""
        settings, state = self._settings, self.state
        if not state.curve:
            self._in_step = True
            state.table = self._play_first()
            self._evaluate()
        best = state.best
        if len(state.curve) > 1 or best is None or best.meets_bounds:
            return
        tuning = state.tuning or start_tuning(
            self._graphs, len(self._types), self._cost
        )
        while tuning.generation < settings.generations:
            state.tuning = tuning = next_generation(
                tuning,
                self._graphs,
                settings.generations,
                settings.seed,
                self._cost,
            )
            check_interrupt()
        self._in_step = True
        table = self._play_first()
        result = self._evaluator(table, self._weights, state.trial)
        if result.batches < best.batches:
            state.table = table
        else:
            state.tuning = replace(tuning, best=0 * tuning.best)
        self._note(result)

    def _play_first(self) -> QTable:
        """Values the first choice of `fall` in all states that it leads to."""
        table = new_table(len(self._types))
        for k in range(len(self._starts)):
            table = self._play(table, k, epsilon=0.0)
        return table

    @property
    def _weights(self) -> BoundWeights:
        tuning = self.state.tuning
        return BoundWeights() if tuning is None else tuning.weights

    def _run_trial(self) -> None:
        settings, state = self._settings, self.state
        self._in_step = True
        epsilon = settings.epsilon * (1 - state.trial / settings.trials)
        state.table = self._play(
            state.table, state.trial % len(self._starts), epsilon=epsilon
        )
        state.trial += 1
        if state.trial in evaluations(settings.trials):
            self._evaluate()
        self._in_step = False

    def _play(self, table: QTable, graph: int, epsilon: float) -> QTable:
        """Runs one episode and learns from it."""
        settings, start = self._settings, self._starts[graph]
        num_types = len(self._types)
        type_of = np.arange(num_types, dtype=np.int32)
        return run_trial(
            table,
            start.state(),
            start.structure.instance_nodes,
            start.below,
            Rules(
                self._kind,
                *self._weights.arrays(type_of, num_types),
                0.0 if self._kind == FALL else float(settings.alpha),
                epsilon,
                int(settings.n_step),
                float(settings.learning_rate),
                np.ones(num_types) if self._cost is None else self._cost,
            ),
            self.state.stream,
        )

    def _evaluate(self) -> None:
        state = self.state
        self._in_step = True
        self._note(self._evaluator(state.table, self._weights, state.trial))

    def _note(self, result: EvalResult) -> None:
        state = self.state
        if state.best is None or result.rank < state.best.rank:
            state.best = result
        state.curve.append((state.trial, result.batches))
        self._in_step = False
        self._save()
        if self._progress is not None:
            trials, bound = self._settings.trials, self._evaluator.bound
            self._progress(state.trial, trials, result.batches, bound)

    def _save(self) -> None:
        if self._checkpoint is not None:
            now = time.perf_counter()
            self.state.elapsed_s += now - self._began
            self._began = now
            save_checkpoint(self._checkpoint, self.state, self.identity)

    def machine(self, stopped: str, workload: str) -> StateMachine:
        """Builds the policy and its record."""
        evaluator, best = self._evaluator, self.state.best
        greedy = evaluator.heuristic(Greedy())
        if stopped == "greedy":
            self.state.curve.append((0, greedy))
        encoding = self._settings.encoding
        worse = best is not None and best.batches > greedy
        if best is None or worse:
            encoding = encoding if self._kind != FALL else "sort"
            follow = Evaluator(
                self._held_out,
                encoding_id(encoding),
                len(self._types),
                self._cost,
            )
            best = follow(new_table(len(self._types)), BoundWeights(), 0)
            best = replace(best, unseen=0)  # it has no table to miss a state in
        if stopped in ("trials", "patience") and best.meets_bounds:
            stopped = "lower bound"  # if only with the help of the greedy heuristic
        record = self._record(stopped, workload, best, greedy, worse)
        return StateMachine(self._types, encoding, best.states, record, best.weights)

    def _record(
        self, stopped: str, workload: str, best: EvalResult, greedy: float, worse: bool
    ) -> TrainingRecord:
        settings, evaluator = self._settings, self._evaluator
        elapsed_s = self.state.elapsed_s + time.perf_counter() - self._began
        return TrainingRecord(
            workload=workload,
            encoding=settings.encoding,
            seed=settings.seed,
            n_step=int(settings.n_step),
            alpha=float(settings.alpha),
            learning_rate=float(settings.learning_rate),
            epsilon=float(settings.epsilon),
            generations=int(settings.generations),
            patience=int(settings.patience),
            trials=self.state.trial,
            max_trials=int(settings.trials),
            best_trial=best.trial,
            minibatches=len(self._graphs),
            batch_size=mean(len(each.instance_nodes) for each in self._graphs),
            held_out=len(self._held_out),
            held_out_batches=best.batches,
            held_out_lower_bound=evaluator.bound,
            held_out_depth=evaluator.heuristic(Depth()),
            held_out_agenda=evaluator.heuristic(Agenda()),
            held_out_agenda_remaining=evaluator.heuristic(AgendaRemaining()),
            held_out_greedy=greedy,
            held_out_unseen=best.unseen,
            stopped=stopped,
            worse_than_greedy=worse,
            elapsed_s=round(elapsed_s, 3),
            curve=tuple(self.state.curve),
            versions=tuple((name, _version(name)) for name in _VERSIONS_OF),
        )


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


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
