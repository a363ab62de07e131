"""Runs a minibatch of instances that ask for values, from start to end."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.output_recording import OutputColumns
from edbatch.graph.output_tree import Outputs
from edbatch.graph.tape import Tape
from edbatch.waves.asked_values import Asked, returned_handles
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.paths import recording_of
from edbatch.waves.runner import WaveRunner
from edbatch.waves.wave_report import WaveReport

_TWO_PARTS = 32  # minibatches of at least this many instances run in two parts
_ONE_PART = 8  # once at most this many are left, they run in one part again


@dataclass(frozen=True, eq=False)
class Rollout:
    """Results of instances that were run to their ends, and the paths that they took.

    Attributes:
        outputs: The model's pytree with a leading axis over instances, as a call of the
            batched function returns it.
        recordings: A recording of each instance: its computation, with the values that
            it asked for as constants. They can be kept, planned and differentiated.
        report: Counts of the waves.
        values: For each instance the values that it received, one list of arrays for
            each time that it asked; None if they were not kept.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> @eb.cell
        ... def halve(x):
        ...     return x / 2
        >>> def model(params, x):
        ...     while eb.value(x := halve(x)) > 1:
        ...         pass
        ...     return x
        >>> found = eb.batch(model).rollout((), [6.0, 1.0])
        >>> found.outputs.tolist(), found.report.waves
        ([0.75, 0.5], 3)
    """

    outputs: Any
    recordings: list[DataflowGraph]
    report: WaveReport
    values: list[list[list[np.ndarray]]] | None = None

    def __repr__(self) -> str:
        """Returns a one-line summary."""
        return f"<Rollout of {len(self.recordings)} instances: {self.report}>"


def run_instances(
    runner: WaveRunner,
    model: Callable[[Any, Any], Any],
    params: Any,
    instances: Sequence[Any],
) -> list[InstanceRun]:
    """Runs instances of a model to their ends, in waves.

    Args:
        runner: A new runner.
        model: The model.
        params: The placeholder of the parameters while the model is recorded.
        instances: The instances.

    Returns:
        The instances, all ended; their results are on the device.

    Raises:
        BaseException: Raised by the model for an instance, with a note that names the
            instance; all others are closed then.
    """
    runs: list[InstanceRun] = []
    launched: deque[tuple[list[InstanceRun], Asked]] = deque()
    index: int | None = None  # of the instance that is running in Python
    try:
        for own in _parts(len(instances)):
            for index in own:
                call = partial(model, params, instances[index])
                runs.append(runner.start(index, call))
                _release_if_ended(runner, runs[-1])
            index = None
            _launch(runner, runs[own.start :], launched)
        while launched:
            waiting: list[InstanceRun] = []
            left = sum(len(part) for part, _ in launched)
            for _ in launched.copy() if left <= _ONE_PART else range(1):
                part, asked = launched.popleft()
                waiting += part
                for run, answers in runner.answers(asked):
                    index = run.index
                    runner.resume(run, answers)
                    _release_if_ended(runner, run)
                index = None
            _launch(runner, waiting, launched)
    except BaseException as error:
        is_of_one = index is not None and len(instances) > 1
        if is_of_one and not isinstance(error, KeyboardInterrupt):
            doing = "running" if runner.counts.waves else "recording"
            error.add_note(f"while {doing} instance {index} of the minibatch")
        _close(runs)
        raise
    return runs


def _parts(count: int) -> list[range]:
    """Divides a minibatch in two: one half runs in Python while the other computes.

    Small minibatches stay whole, because the host takes about as long for any wave. For
    the same reason two parts become one when few instances are left.
    """
    half = count // 2 if count >= _TWO_PARTS else count
    return [range(half), range(half, count)][: 1 + (half < count)]


def _release_if_ended(runner: WaveRunner, run: InstanceRun) -> None:
    """Releases the rows of an ended instance, except those of its results."""
    if run.ended:
        runner.release(run, (each._value for each in returned_handles(run)))


def _launch(
    runner: WaveRunner,
    runs: Sequence[InstanceRun],
    launched: deque[tuple[list[InstanceRun], Asked]],
) -> None:
    """Launches the next wave of those instances that have not ended."""
    waiting = [run for run in runs if not run.ended]
    if waiting:
        launched.append((waiting, runner.launch(waiting)))


def _close(runs: Sequence[InstanceRun]) -> None:
    """Ends all instances, even if the clean-up of one of them raises."""
    for run in runs:
        try:
            run.close()
        except KeyboardInterrupt:
            raise
        except BaseException:
            continue


def collect_results(runner: WaveRunner, runs: Sequence[InstanceRun], rows: int) -> Any:
    """Gathers the results of instances.

    Args:
        runner: The runner.
        runs: The instances, all ended.
        rows: Rows of the result, at least the number of instances.

    Returns:
        The model's pytree with a leading axis of this many rows.

    Raises:
        RecordingError: Their results differ in structure.
    """
    results = [each._value for run in runs for each in returned_handles(run)]
    runner.compute(results)
    types = runner.tape.types
    tape, columns = Tape(types), OutputColumns()
    for run in runs:
        columns.add(_on_tape(run, tape), run.result)
    outputs: Outputs = columns.finish(types.trees)
    shape = outputs.describe(rows)
    located = outputs.locate_by(runner.rows_of)
    padded = shape.pad(
        located,
        lambda name, size: runner.execution.result_rows((outputs.tree, name), 2 * size),
    )
    pools = {}
    for kind, found in tape.pools().items():
        size = runner.execution.result_rows((outputs.tree, kind), 2 * len(found))
        pools[kind] = np.zeros((size, *found.shape[1:]), found.dtype)
        pools[kind][1 : len(found) + 1] = found
    return runner.execution.collect(shape, padded.rows, padded.lengths, pools)


def _on_tape(run: InstanceRun, tape: Tape) -> InstanceRun:
    """Redirects the external inputs that an instance returns to a tape of results."""
    run.tape = tape
    return run


def recordings_of(
    runner: WaveRunner, runs: Sequence[InstanceRun]
) -> list[DataflowGraph]:
    """Returns a recording of the path of each instance.

    Args:
        runner: The runner, which kept paths.
        runs: The instances, all ended.

    Returns:
        Their recordings.
    """
    recorded = runner.recorded
    assert recorded is not None, "the runner keeps paths"
    return [recording_of(run, recorded) for run in runs]
