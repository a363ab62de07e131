"""Explains a minibatch: plans it as a call would, then counts and times its batches."""

from dataclasses import replace
from typing import Any

import jax

from edbatch.compilation.record import Compilation
from edbatch.compilation.signature import name_of
from edbatch.errors import PlanError
from edbatch.explain.build import explain_plan, predict_us
from edbatch.explain.measure import measure_us
from edbatch.explain.report import Explanation
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.model_state import ModelState
from edbatch.options import Options
from edbatch.plan_state import PlanState
from edbatch.planning import encode_laid_out, lay_out, pad_to_bucket
from edbatch.target import Target


def explain_graph(
    graph: DataflowGraph,
    state: ModelState,
    options: Options,
    target: Target,
    *,
    params: Any = None,
    rng: Any = None,
    measure: bool = False,
    compilations: tuple[Compilation, ...] = (),
    own: PlanState | None = None,
) -> Explanation:
    """Explains a recorded minibatch.

    Args:
        graph: Its graph.
        state: The state of its model.
        options: Options of planning.
        target: The kind of device.
        params: The model's parameters; to measure, they have to be arrays.
        rng: The key for cells that draw random numbers, used to measure.
        measure: Whether to measure how long batches take.
        compilations: The model's compilations so far.
        own: The planning state; by default a scratch copy of the model's, so that a
            report decides nothing about later plans.

    Returns:
        The report; with times if they are measured, or if costs are given.

    Raises:
        EdbatchError: As for `edbatch.planning.plan` and `measure_us`; or there are no
            arrays to measure with, or the costs are for other cells.
    """
    model = name_of(state.types.model)
    if own is None:
        own = state.planning.scratch()
    laid_out = lay_out(graph, own, options, target)
    result = graph.outputs.describe(graph.num_instances)
    part = encode_laid_out(laid_out, result, own)
    encoded = pad_to_bucket(part, own, options, target, None)
    plan = encoded.with_externals(graph.externals)
    found = explain_plan(graph, laid_out, plan, model)
    if measure:
        if params is None:
            raise PlanError(
                "measuring a minibatch runs it, but no parameters were given; pass"
                " params=, arrays, to explain"
            )
        leaves = jax.tree.leaves(params)
        if any(isinstance(each, jax.ShapeDtypeStruct) for each in leaves):
            raise PlanError(
                "measuring a minibatch runs it, but params= holds shapes in place of"
                " arrays (jax.ShapeDtypeStruct); pass the parameters themselves"
            )
        times, measured = measure_us(laid_out, plan, params, rng, model)
        found = found.with_times(times, "measured")
        compilations += measured
    elif options.costs is not None:
        found = found.with_times(predict_us(found, options.costs), "predicted")
    return replace(found, compilations=compilations)
