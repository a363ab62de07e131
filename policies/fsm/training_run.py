"""A training run: tuning, episodes, evaluations and the resulting policy."""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from edbatch.ctrl_c import ends_at_ctrl_c
from edbatch.graph.structure import GraphStructure
from edbatch.policies.cost.model import CostModel
from edbatch.policies.fsm.checkpoint import TrainingState, digest, save_checkpoint
from edbatch.policies.fsm.encoding import FALL, encoding_id
from edbatch.policies.fsm.episode import Episode
from edbatch.policies.fsm.evaluator import EvalResult, Evaluator, mean
from edbatch.policies.fsm.q_learning import QTable, Rules, new_table
from edbatch.policies.fsm.random_stream import new_stream
from edbatch.policies.fsm.settings import Settings, common_types, evaluations
from edbatch.policies.fsm.state_machine import StateMachine
from edbatch.policies.fsm.training_record import (
    GREEDY_ENCODING,
    TrainingRecord,
    package_versions,
)
from edbatch.policies.fsm.tuning import next_generation, start_tuning
from edbatch.policies.heuristics import Agenda, AgendaRemaining, Depth, Greedy
from edbatch.policies.smooth_bound.weights import BoundWeights
from edbatch.schedule.interrupt import deferred_interrupt, keyboard_interrupts

# Called with trial, trials, mean batches and mean lower bound after each evaluation.
Progress = Callable[[int, int, float, float], None]


class TrainingRun:
    """One training run: its settings, its minibatches and its state."""

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
    def _episodes(self) -> list[Episode]:
        return [Episode(each, len(self._types)) for each in self._graphs]

    @property
    def num_types(self) -> int:
        """Number of types of the model."""
        return len(self._types)

    @property
    def identity(self) -> dict[str, Any]:
        """Settings, minibatches and costs, which a checkpoint has to match."""
        return {
            **self._settings.as_json(),
            "graphs": digest(self._graphs),
            "held_out": digest(self._held_out),
            "costs": None if self._cost is None else self._cost.tolist(),
        }

    def finish(self, *, keep: bool = True) -> str:
        """Trains to the end; returns why it ended.

        Args:
            keep: Whether Ctrl-C must leave a result to keep. If not, and if Ctrl-C ends
                the process, Ctrl-C is not deferred.

        Returns:
            The reason: a value of `TrainingRecord.stopped`.
        """
        at_once = not keep and ends_at_ctrl_c()
        deferral = nullcontext(_nothing) if at_once else deferred_interrupt()
        try:
            with keyboard_interrupts(), deferral as check_interrupt:
                if self._kind == FALL and not self.state.trial:
                    self._begin(check_interrupt)
                while (stopped := self._why_ended()) is None:
                    self._run_trial()
                    check_interrupt()
        except KeyboardInterrupt:
            stopped = "interrupted"
            # A second Ctrl-C may come in the middle of a step, whose state cannot be
            # resumed.
            if not self._in_step:
                self._save()
        return stopped

    def _why_ended(self) -> str | None:
        """Returns why training is over, or None if it is not."""
        state, best = self.state, self.state.best
        if best is not None:
            if best.meets_bounds and not best.unseen:
                return "lower bound"
            waited = sum(trial > best.trial for trial, _ in state.curve)
            if waited >= self._settings.patience:
                return "patience"
        return "trials" if state.trial == self._settings.trials else None

    def _begin(self, check_interrupt: Callable[[], None]) -> None:
        """Tunes the weights of the smoothed bound; keeps equal ones if no worse."""
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
        """Learns the values of `fall`'s first type in all states that it leads to."""
        table = new_table(len(self._types))
        for k in range(len(self._episodes)):
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
            state.table, state.trial % len(self._episodes), epsilon=epsilon
        )
        state.trial += 1
        if state.trial in evaluations(settings.trials):
            self._evaluate()
        self._in_step = False

    def _play(self, table: QTable, graph: int, epsilon: float) -> QTable:
        """Runs one episode and learns from it."""
        settings, num_types = self._settings, len(self._types)
        type_of = np.arange(num_types, dtype=np.int32)
        rules = Rules(
            self._kind,
            *self._weights.arrays(type_of, num_types),
            0.0 if self._kind == FALL else float(settings.alpha),
            epsilon,
            min(int(settings.n_step), sys.maxsize),
            float(settings.learning_rate),
            np.ones(num_types) if self._cost is None else self._cost,
        )
        return self._episodes[graph].play(table, rules, self.state.stream)

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
            encoding = encoding if self._kind != FALL else GREEDY_ENCODING
            follow = Evaluator(
                self._held_out,
                encoding_id(encoding),
                len(self._types),
                self._cost,
            )
            best = follow(new_table(len(self._types)), BoundWeights(), 0)
            best = replace(best, unseen=0)  # without a table, no state is unseen
        if stopped in ("trials", "patience") and best.meets_bounds:
            stopped = "lower bound"  # perhaps only by following the greedy heuristic
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
            versions=package_versions(),
            by_cost=None if self._cost is None else True,
        )


def _nothing() -> None:
    """Does nothing; replaces the check for a deferred interrupt."""
