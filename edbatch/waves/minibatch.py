"""A minibatch of a model that asks for values: what batched functions call."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edbatch.compilation.tiered_function import TieredFunction
from edbatch.errors import PlanError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.output_recording import OutputColumns
from edbatch.graph.parameters import abstract, check_params
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.plan.padding import first_rows
from edbatch.recording import check_calls, check_not_empty
from edbatch.stream.buckets import round_instances
from edbatch.target import choose_target
from edbatch.waves.instance_run import InstanceRun
from edbatch.waves.programs import WaveFunctions
from edbatch.waves.rollout import (
    Rollout,
    collect_results,
    recordings_of,
    run_instances,
)
from edbatch.waves.runner import WaveRunner


def call_in_waves(
    state: ModelState,
    options: Options,
    functions: WaveFunctions,
    params: Any,
    instances: Sequence[Any],
    rng: Any = None,
) -> Any:
    """Runs a minibatch in waves, if one of its instances asks for values.

    Args:
        state: The state of the parameters.
        options: What planning goes by.
        functions: The compiled functions of the model's waves.
        params: The parameters.
        instances: The instances.
        rng: The key for cells that draw random numbers, or None.

    Returns:
        The model's pytree with a leading axis over instances; the dataflow graph of the
        minibatch if no instance asked, which has run nothing then.

    Raises:
        EdbatchError: As `edbatch.Batched.__call__`.
    """
    runner, runs = _start(state, options, functions, params, instances, rng)
    if not runner.counts.waves:
        return _whole_graph(runner, runs)
    return _results(runner, runs)


def roll_out(
    state: ModelState,
    options: Options,
    functions: WaveFunctions,
    params: Any,
    instances: Sequence[Any],
    rng: Any = None,
    *,
    keep_values: bool = False,
) -> Rollout:
    """Runs a minibatch in waves and keeps the paths that instances took.

    Args:
        state: As for `call_in_waves`.
        options: As for `call_in_waves`.
        functions: As for `call_in_waves`.
        params: As for `call_in_waves`.
        instances: As for `call_in_waves`.
        rng: As for `call_in_waves`.
        keep_values: Whether to keep what instances are handed.

    Returns:
        The outputs and the recordings.

    Raises:
        EdbatchError: As `edbatch.Batched.rollout`.
    """
    runner, runs = _start(
        state,
        options,
        functions,
        params,
        instances,
        rng,
        keep_paths=True,
        keep_values=keep_values,
    )
    outputs = _results(runner, runs)
    values = [run.values or [] for run in runs] if keep_values else None
    return Rollout(outputs, recordings_of(runner, runs), runner.counts.copy(), values)


def calls_ahead(
    state: ModelState,
    options: Options,
    functions: WaveFunctions,
    params: Any,
    instances: Sequence[Any],
    rng: Any = None,
) -> list[tuple[TieredFunction, tuple[Any, ...]]]:
    """Runs a minibatch, by coarse programs if it may, to see what it would call.

    Args:
        state: As for `call_in_waves`.
        options: As for `call_in_waves`.
        functions: As for `call_in_waves`.
        params: As for `call_in_waves`.
        instances: As for `call_in_waves`.
        rng: As for `call_in_waves`.

    Returns:
        The compiled functions that such minibatches call, and their arguments.

    Raises:
        EdbatchError: As `call_in_waves`.
    """
    runner, runs = _start(state, options, functions, params, instances, rng)
    _results(runner, runs)
    return runner.calls()


def _start(
    state: ModelState,
    options: Options,
    functions: WaveFunctions,
    params: Any,
    instances: Sequence[Any],
    rng: Any,
    *,
    keep_paths: bool = False,
    keep_values: bool = False,
) -> tuple[WaveRunner, list[InstanceRun]]:
    """Runs all instances to their ends."""
    check_not_empty(instances)
    _check_instances(instances)
    abstract(params)
    check_params(params, state.types.params_spec)
    sizes = state.wave_sizes(options, choose_target(params))
    runner = WaveRunner(
        state,
        sizes,
        functions,
        options,
        params,
        rng,
        keep_paths=keep_paths,
        keep_values=keep_values,
    )
    model = state.types.model
    assert model is not None, "a state's types know their model"
    return runner, run_instances(runner, model, state.types.params, instances)


def _check_instances(instances: Sequence[Any]) -> None:
    for each in instances:
        if isinstance(each, DataflowGraph):
            raise PlanError(
                "a recording holds a path that was taken already, so it cannot be run"
                " beside instances that ask for values; run instances and recordings in"
                " two minibatches"
            )


def _results(runner: WaveRunner, runs: Sequence[InstanceRun]) -> Any:
    count = len(runs)
    rows = runner.result_rows("instances", round_instances(count))
    return first_rows(collect_results(runner, runs, rows), count)


def _whole_graph(runner: WaveRunner, runs: Sequence[InstanceRun]) -> DataflowGraph:
    """Returns the graph of instances of which none has asked for a value."""
    tape, columns = runner.tape, OutputColumns()
    for run in runs:
        columns.add(run, run.result)
    nodes = [sum(last - first for _, first, last, _, _ in run.parts) for run in runs]
    check_calls(nodes)
    return DataflowGraph(
        types=tape.types,
        node_type=np.array(tape.node_type, np.int32),
        operands=np.array(tape.operands, np.int32),
        external_rows=np.array(tape.external_rows, np.int32),
        externals=tape.pools(),
        outputs=columns.finish(tape.types.trees),
        instance_nodes=np.array(nodes, np.int32),
        num_values=tape.num_values,
    )
