"""Runs the instances in flight in Python, one at a time; they record on one tape."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from edbatch.cell.jaxpr import is_tracing
from edbatch.graph.tape import Tape, TapeMark
from edbatch.model_state import ModelState
from edbatch.waves.call_stacks import CallStack
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.long_run import LONG, LongRun, watch
from edbatch.waves.value_rows import ValueRows

_NUMBERS = 2**31  # of instances, reused in turn; far fewer are in flight at a time


class InFlight:
    """Instances of one model that share a tape, in one thread.

    Args:
        state: The state of the model.
        keep_paths: Whether the caller keeps the recorded nodes.
        keep_values: Whether instances keep the values that they received.

    Attributes:
        tape: The tape, with the nodes recorded since it was last cleared.
        parts: Parts of the tape, in order: the number of an instance, and how many
            nodes it recorded.
        takes: How often the tape was cleared.
        long: Instances that have run in many parts and have not been freed.
    """

    def __init__(
        self, state: ModelState, *, keep_paths: bool, keep_values: bool
    ) -> None:
        self.tape = Tape(state.types)
        self.parts: list[tuple[int, int]] = []
        self.takes = 0
        self.long: list[LongRun] = []
        self._calls = state.calls
        self._started = 0
        self._stacks: list[CallStack] = []
        self._traced = is_tracing()
        self._keep_paths, self._keep_values = keep_paths, keep_values
        self._ended: list[tuple[InstanceRun, list[int]]] = []
        self._held: list[tuple[InstanceRun, list[int]]] = []  # results not computed yet

    def start(self, index: int, call: Callable[[], Any]) -> InstanceRun:
        """Runs an instance until it asks for values or ends.

        Args:
            index: Number from which the random keys of its cells are derived.
            call: Runs the model on the instance, with handles.

        Returns:
            The instance.

        Raises:
            Exception: Raised by the model.
        """
        run = self.new_run(index)
        self.start_run(run, call)
        return run

    def new_run(self, index: int) -> InstanceRun:
        """Returns an instance that has not started; see `start`."""
        run = InstanceRun(self.tape, self._calls, index, self._stacks)
        run.number = self._started
        self._started = (self._started + 1) % _NUMBERS
        if self._keep_values:
            run.values = []
        return run

    def start_run(self, run: InstanceRun, call: Callable[[], Any]) -> None:
        """Runs a new instance until it asks for values or ends; see `start`."""
        tape = self.tape
        node, value = len(tape.node_type), tape.num_values
        try:
            run.start(call, traced=self._traced)
        finally:
            self._note_part(run, node, value)

    def cut_back(self, run: InstanceRun | None, mark: TapeMark) -> None:
        """Removes the nodes that a failed instance has recorded since a mark.

        Args:
            run: The instance that ran last.
            mark: A mark of the tape, made before it ran.
        """
        if len(self.tape.node_type) > mark.nodes:
            assert run is not None, "an instance has recorded"
            run.parts.pop()
            self.parts.pop()
        self._cut_tape(run, mark)

    def _cut_tape(self, run: InstanceRun | None, mark: TapeMark) -> None:
        self.tape.cut_back(mark)
        if isinstance(run, LongRun):
            run.forget_from(mark.num_values)

    def resume(self, run: InstanceRun, answers: list[np.ndarray]) -> None:
        """Runs a suspended instance until it asks for values again or ends.

        Args:
            run: The instance.
            answers: The values that it asked for.

        Raises:
            Exception: Raised by the model.
        """
        tape = self.tape
        node, value = len(tape.node_type), tape.num_values
        try:
            run.resume(answers)
        finally:
            self._note_part(run, node, value)

    def _note_part(self, run: InstanceRun, node: int, value: int) -> None:
        """Notes which nodes an instance has recorded, even if it has failed."""
        last = len(self.tape.node_type)
        if last > node:
            part = (self.takes, node, last, value, self.tape.num_values)
            run.parts.append(part)
            self.parts.append((run.number, last - node))
            if len(run.parts) >= LONG:
                self._note_long(run)

    def _note_long(self, run: InstanceRun) -> None:
        """Watches the handles of an instance that has run in many parts."""
        if not isinstance(run, LongRun):
            self.long.append(watch(run))
            return
        if not self._keep_paths and len(run.parts) > LONG + 1:
            del run.parts[-2]  # the handles keep track of its values
        run.look_if_many()

    def close(self, run: InstanceRun) -> None:
        """Ends a suspended instance; cells that it calls while ending are not recorded.

        Args:
            run: The instance.

        Raises:
            Exception: Raised by its ``finally`` clauses.
        """
        mark = self.tape.mark()
        try:
            run.close()
        finally:
            self._cut_tape(run, mark)

    def release(self, run: InstanceRun, kept: Iterable[int] = ()) -> None:
        """Marks the rows of an ended instance to be freed before the next wave.

        Args:
            run: The instance.
            kept: Numbers of the values that are read later. No row of the instance is
                freed until all of them are computed.
        """
        if run.released:  # a server may call this while a wave runs, and at the end
            return
        run.released = True
        if run.parts:  # otherwise it has no rows
            self._ended.append((run, list(kept)))

    def clear_tape(self) -> None:
        """Clears the tape, so that instances record on an empty one."""
        self.tape.clear()
        self.parts.clear()
        self.takes += 1

    def results_are_computed(self) -> None:
        """Allows freeing instances whose results were not computed when they ended."""
        self._ended += self._held
        self._held = []

    def free_ended(self, rows: ValueRows) -> None:
        """Frees the rows of instances that have ended, except for kept values.

        Args:
            rows: The rows.
        """
        for run, kept in self._ended:
            if kept and (rows.of(kept) < 0).any():
                self._held.append((run, kept))
                continue
            for _, _, _, first, last in run.parts:
                rows.free(first, last)
            if isinstance(run, LongRun):
                rows.free_some(run.unfreed())
                self.long.remove(run)
            if kept:
                rows.keep(np.array(kept, np.int64))
        self._ended.clear()
