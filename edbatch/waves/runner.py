"""Runs the waves of instances that ask for values.

Instances in flight share one tape (`edbatch.waves.in_flight`). Recorded nodes are
pending until they run: a small dataflow graph, some of whose operands are values of
earlier waves that stay on the device. A wave runs the nodes whose values were asked
for, and all nodes that they depend on; the rest waits (`edbatch.waves.pending`). The
policy schedules the wave, one program runs it (`edbatch.waves.wave_execution`), and
only the values that were asked for are copied to the host.
"""

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.schedule.schedule import Schedule
from edbatch.stream.buckets import Needs
from edbatch.stream.wave_sizes import WaveSizes
from edbatch.waves.asked_values import Asked, find_asked
from edbatch.waves.in_flight import InFlight
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.long_run import free_unreachable
from edbatch.waves.pending import PendingNodes
from edbatch.waves.program_maker import NextProgram
from edbatch.waves.programs import WaveFunctions
from edbatch.waves.value_rows import ValueRows
from edbatch.waves.wave_execution import NO_NODES, WaveExecution
from edbatch.waves.wave_nodes import RecordedNodes, no_nodes
from edbatch.waves.wave_report import WaveReport


class WaveRunner(InFlight):
    """Runs instances of one model in waves, on one device and in one thread.

    Args:
        state: The state of the model.
        sizes: The sizes of its programs.
        functions: Its compiled functions.
        options: Options of scheduling and compilation.
        params: The parameters, JAX or NumPy arrays.
        rng: The key for cells that draw random numbers, or None.
        keep_paths: Whether to keep the recorded nodes.
        keep_values: Whether instances keep the values that they received.

    Attributes:
        pending: The nodes taken off the tape that have not run.
        counts: Counts of the waves so far.
        recorded: All nodes taken off the tape, if paths are kept; otherwise None.
        execution: Runs waves on the device.
    """

    def __init__(
        self,
        state: ModelState,
        sizes: WaveSizes,
        functions: WaveFunctions,
        options: Options,
        params: Any,
        rng: Any = None,
        *,
        keep_paths: bool = False,
        keep_values: bool = False,
    ) -> None:
        super().__init__(state, keep_paths=keep_paths, keep_values=keep_values)
        self.tape.keyless = rng is None
        self.pending = PendingNodes(state.types)
        self.counts = WaveReport()
        self.recorded: list[RecordedNodes] | None = [] if keep_paths else None
        self.execution = WaveExecution(
            state, sizes, functions, options, params, rng, self.counts
        )
        self._policy = options.policy
        self._aside: set[int] = set()  # numbers of instances

    def take(self) -> None:
        """Moves the recorded nodes from the tape to the front of the pending nodes.

        Frees the values of instances that have ended, so that their nodes are no longer
        chosen for a wave.
        """
        tape, rows = self.tape, self.value_rows
        if tape.node_type:
            new = self.pending.add(tape, self.parts)
            rows.append(tape.num_values - rows.end)
            self.counts.recorded += len(tape.node_type)
            self.clear_tape()
            if self.recorded is not None:
                self.recorded.append(new)
            if self._aside:
                self.pending.set_aside(self._aside, behind=False)
        self.free_ended(rows)

    def unknown_types(self, run: InstanceRun) -> frozenset[int]:
        """Returns the unknown types among the nodes that an instance recorded last.

        Args:
            run: The instance that ran last.

        Returns:
            Types for which a program must be compiled before a wave can run the nodes
            that the instance recorded last.
        """
        if not run.parts or run.parts[-1][0] != self.takes:
            return frozenset()
        _, first, last, *_ = run.parts[-1]
        return self.execution.unknown_types(self.tape.node_type[first:last])

    def hold(self, run: InstanceRun) -> None:
        """Keeps an instance's nodes out of waves, until `release_held`.

        Args:
            run: The instance.
        """
        self._aside.add(run.number)
        if run.parts and run.parts[-1][0] != self.takes:  # its nodes are pending by now
            self.pending.set_aside({run.number})

    def forget(self, run: InstanceRun) -> None:
        """Stops holding an instance that has ended; `tidy` drops its nodes."""
        self._aside.discard(run.number)

    def release_held(self, runs: Iterable[InstanceRun]) -> None:
        """Lets waves run the nodes of instances.

        Args:
            runs: Instances, held or not.
        """
        gone = self._aside & {run.number for run in runs}
        if gone:
            self._aside -= gone
            self.take()
            self.pending.bring_back()
            self.pending.set_aside(self._aside)

    def prepare(
        self, runs: Sequence[InstanceRun], types: Collection[int], needs: Needs
    ) -> NextProgram:
        """Starts compiling a program for a wave of held instances.

        Args:
            runs: The instances, which wait for values; empty if the program only has to
                be larger than the current one.
            types: Their `unknown_types`.
            needs: Minimum sizes of the program.

        Returns:
            The program, for `WaveExecution.adopt`.

        Raises:
            EdbatchError: As for `launch`.
        """
        execution = self.execution
        if not runs:
            return execution.prepare(NO_NODES, no_nodes(), {}, types, needs)
        aside, self._aside = self._aside, set()
        try:
            self.take()
            self.pending.bring_back()
            asked, _ = find_asked(runs)
            values = [value for each in asked.values() for value in each]
            chosen = self.pending.needed_for(
                np.array(values, np.int64), self.value_rows
            )
            schedule = self.pending.schedule(chosen, self._policy)
            return execution.prepare(schedule, self.pending.front, asked, types, needs)
        finally:
            self._aside = aside
            self.pending.set_aside(aside)

    def launch(
        self,
        waiting: Sequence[InstanceRun],
        *,
        results: Sequence[int] = (),
        schedule: Schedule | None = None,
        may_grow: bool = True,
        apart: bool = False,
    ) -> Asked:
        """Starts a wave on the device, which may run while the host continues.

        Args:
            waiting: Instances that wait for values.
            results: Numbers of other values to compute.
            schedule: A schedule of nodes in `pending`, whose dependencies are in it or
                have run; call `take` before. By default the policy schedules the nodes
                that are needed, or all nodes if too many wait.
            may_grow: Whether to compile a larger program if none is large enough.
            apart: Whether to exclude the nodes of other instances, whose external
                inputs would need room in the wave.

        Returns:
            The values that are being computed; see `answers`. With a schedule, only
            instances whose values are all computed by then are included.

        Raises:
            EdbatchError: The policy belongs to another model; or a cell needs a key and
                there is none.
            NoRoomError: The program is too small and may not grow; nothing ran.
        """
        start, run_ms = time.perf_counter(), self.counts.run_ms
        if not self.counts.waves:
            self.execution.check_params()
        if schedule is None:
            self.take()
        else:
            waiting = self._served(waiting, schedule)
        if apart:
            own = {run.number for run in waiting}
            self.pending.set_aside(own, others=True)
        try:
            return self._launch(waiting, results, schedule, may_grow=may_grow)
        finally:
            if apart:
                self.pending.bring_back()
                self.pending.set_aside(self._aside)
            self.counts.host_ms += 1e3 * (time.perf_counter() - start)
            self.counts.host_ms -= self.counts.run_ms - run_ms

    def _launch(
        self,
        waiting: Sequence[InstanceRun],
        results: Sequence[int],
        schedule: Schedule | None,
        *,
        may_grow: bool,
    ) -> Asked:
        asked, places = find_asked(waiting)
        if schedule is None:
            schedule = self._schedule(asked, results)
        else:
            self.results_are_computed()
        values = self.execution.run(
            schedule, self.pending, asked, self._free_unreachable, may_grow=may_grow
        )
        return Asked({kind: values[kind] for kind in asked}, places)

    def tidy(self) -> None:
        """Drops the pending nodes of instances that have ended."""
        self.take()
        self.pending.bring_back()
        self.pending.merge(self.value_rows)

    def compute(self, results: Sequence[int]) -> None:
        """Computes values for which no instance waits, if they are not computed yet.

        Args:
            results: Numbers of values.
        """
        self.take()
        if (self.value_rows.of(results) < 0).any():
            self.launch([], results=results)

    def _schedule(
        self, asked: dict[int, list[int]], results: Sequence[int]
    ) -> Schedule:
        """Schedules the needed nodes; if too many wait, all nodes in use."""
        values = [value for each in asked.values() for value in each]
        wanted = np.array([*values, *results], np.int64)
        chosen, are_all = self.pending.to_run(wanted, self.value_rows)
        if results or are_all:
            self.results_are_computed()
        return self.pending.schedule(chosen, self._policy)

    def _served(
        self, waiting: Sequence[InstanceRun], schedule: Schedule
    ) -> list[InstanceRun]:
        """Returns the instances whose values are all computed after a wave."""
        asked = [[each._value for each in run.asked] for run in waiting]
        values = np.array([value for own in asked for value in own], np.int64)
        there = self.value_rows.of(values) >= 0
        there[~there] = self.pending.computes(values[~there], schedule.order)
        run_of = np.repeat(np.arange(len(asked)), [len(own) for own in asked])
        served = np.ones(len(asked), np.bool_)
        served[run_of[~there]] = False
        return [
            run for run, is_served in zip(waiting, served, strict=True) if is_served
        ]

    def answers(self, asked: Asked) -> Iterable[tuple[InstanceRun, list[np.ndarray]]]:
        """Waits for values.

        Args:
            asked: The result of `launch`.

        Returns:
            Each instance with the values that it asked for; it can be resumed at once.
        """
        values = self.execution.fetch(asked.values)
        for run, places in asked.places:
            yield run, [values[kind][row, ...] for kind, row in places]

    def wait(self) -> None:
        """Waits until the last wave has run."""
        self.execution.wait()

    @property
    def value_rows(self) -> ValueRows:
        """Assignment of values to rows."""
        return self.execution.values.rows

    def rows_of(self, values: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the rows of values; ``[n] int32``."""
        return self.value_rows.of(values)

    def _free_unreachable(self) -> None:
        """Frees the values of running instances whose handles are gone."""
        assert not self.tape.node_type, "what reads values is pending"
        if self.long:
            free_unreachable(self.long, self.pending, self.value_rows)
