"""Runs minibatches in waves, for batched functions of models that ask for values."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edbatch.compilation.tiered_function import TieredFunction
from edbatch.errors import PlanError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.output_recording import OutputColumns
from edbatch.plan.padding import first_rows
from edbatch.recording import check_not_empty
from edbatch.stream.buckets import round_instances
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.rollout import (
    Rollout,
    collect_results,
    recordings_of,
    run_instances,
)
from edbatch.waves.runner import WaveRunner


def call_in_waves(runner: WaveRunner, instances: Sequence[Any]) -> Any:
    """Runs a minibatch in waves, if one of its instances asks for values.

    Args:
        runner: A new runner.
        instances: The instances.

    Returns:
        The model's pytree with a leading axis over instances. If no instance asked for
        a value, the dataflow graph of the minibatch, none of which has run.

    Raises:
        EdbatchError: As `edbatch.Batched.__call__`.
    """
    runs = _run(runner, instances)
    if not runner.counts.waves:
        return _whole_graph(runner, runs)
    return _results(runner, runs)


def roll_out(runner: WaveRunner, instances: Sequence[Any]) -> Rollout:
    """Runs a minibatch in waves and returns the paths that instances took.

    Args:
        runner: A new runner that keeps paths.
        instances: The instances.

    Returns:
        The outputs and the recordings.

    Raises:
        EdbatchError: As `edbatch.Batched.rollout`.
    """
    runs = _run(runner, instances)
    outputs = _results(runner, runs)
    kept = [run.values for run in runs if run.values is not None]
    values = kept if len(kept) == len(runs) else None
    return Rollout(outputs, recordings_of(runner, runs), runner.counts.copy(), values)


def calls_ahead(
    runner: WaveRunner, instances: Sequence[Any]
) -> list[tuple[TieredFunction, tuple[Any, ...]]]:
    """Runs a minibatch, in coarse programs if allowed, to find the calls to compile.

    Args:
        runner: A new runner.
        instances: The instances.

    Returns:
        The compiled functions that such minibatches call, and their arguments.

    Raises:
        EdbatchError: As `edbatch.Batched.__call__`.
    """
    _results(runner, _run(runner, instances))
    return runner.execution.calls()


def _run(runner: WaveRunner, instances: Sequence[Any]) -> list[InstanceRun]:
    """Runs all instances to their ends."""
    check_not_empty(instances)
    _check_instances(instances)
    types = runner.tape.types
    assert types.model is not None, "a state's types know their model"
    return run_instances(runner, types.model, types.params, instances)


def _check_instances(instances: Sequence[Any]) -> None:
    for each in instances:
        if isinstance(each, DataflowGraph):
            raise PlanError(
                "a recording contains a path that was taken already, so it cannot run"
                " together with instances that ask for values; run instances and"
                " recordings in two minibatches"
            )


def _results(runner: WaveRunner, runs: Sequence[InstanceRun]) -> Any:
    count = len(runs)
    rows = runner.execution.result_rows("instances", round_instances(count))
    return first_rows(collect_results(runner, runs, rows), count)


def _whole_graph(runner: WaveRunner, runs: Sequence[InstanceRun]) -> DataflowGraph:
    """Returns the graph of instances, none of which has asked for a value."""
    tape, columns = runner.tape, OutputColumns()
    for run in runs:
        columns.add(run, run.result)
    nodes = [sum(last - first for _, first, last, _, _ in run.parts) for run in runs]
    return DataflowGraph(
        types=tape.types,
        node_type=np.array(tape.node_type, np.int32),
        operands=np.array(tape.operands, np.int32),
        external_rows=np.array(tape.external_rows, np.int32),
        externals=tape.pools([*enumerate(nodes)]),
        outputs=columns.finish(tape.types.trees),
        instance_nodes=np.array(nodes, np.int32),
        num_values=tape.num_values,
    )
