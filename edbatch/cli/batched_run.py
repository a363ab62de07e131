"""Runs a workload on all instances in minibatches, and times it."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch.cli.console import tracked
from edbatch.compilation.settings import fine_only
from edbatch.instance_results import split_instances
from edbatch.models import Workload
from edbatch.plan.padding import first_rows


@fine_only
def run_batched(
    workload: Workload,
    policy: eb.Policy,
    params: Any,
    instances: Sequence[Any],
    batch_size: int,
    *,
    keep: bool,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Runs a workload on all instances, in minibatches.

    Args:
        workload: The workload.
        policy: The policy.
        params: The parameters of the workload.
        instances: The instances; the last minibatch may be smaller.
        batch_size: Instances per minibatch.
        keep: Whether to keep the results.

    Returns:
        A report of times and counts, and the results by name; the latter are empty if
        `keep` is false.
    """
    batched = eb.batch(workload.model, policy).bind(params)
    starts = range(0, len(instances), batch_size)
    spent = {"record_s": 0.0, "plan_s": 0.0, "run_s": 0.0}
    steady_s, steady_instances, compile_s = 0.0, 0, 0.0
    batches, unseen = [], 0
    results: list[Any] = []
    began = time.perf_counter()
    for start in tracked(starts, "Running minibatches"):
        some = instances[start : start + batch_size]
        compiles = batched.compiles
        times = [time.perf_counter()]
        graphs = [batched.record(each) for each in some]
        times.append(time.perf_counter())
        plan = batched.plan(graphs, pad_to=batch_size)
        times.append(time.perf_counter())
        result = jax.block_until_ready(batched.apply(params, plan))
        times.append(time.perf_counter())
        if batched.compiles == compiles:
            steady_s += times[3] - times[0]
            steady_instances += len(some)
            for name, seconds in zip(spent, np.diff(times), strict=True):
                spent[name] += float(seconds)
        else:
            compile_s += times[3] - times[2]
        assert plan.report is not None, "plans are made with a report"
        batches.append(plan.report.batches)
        unseen += plan.report.unseen_states
        if keep:
            results += split_instances(first_rows(result, len(some)), len(some))
    report = {
        "workload": workload.name,
        "policy": policy.name,
        "instances": len(instances),
        "minibatches": len(starts),
        "batches": float(np.mean(batches)),
        "unseen_states": unseen,
        "instances_per_s": steady_instances / steady_s if steady_s else None,
        "seconds": time.perf_counter() - began,
        "compiles": batched.compiles,
        "compile_s": compile_s,
        **spent,
    }
    return report, join_results(results) if keep else {}


def join_results(results: Sequence[Any]) -> dict[str, np.ndarray]:
    """Joins the results of instances into named arrays.

    Args:
        results: The model's result for each instance: arrays, lists of arrays, or dicts
            of them.

    Returns:
        For an array, ``[n, ...]``. For a list, the concatenated elements of all
        instances, and ``<name>.lengths``, ``[n]``. An unnamed result is called
        ``output``.

    Example:
        >>> joined = join_results([[np.zeros(2)] * 3, [np.ones(2)]])
        >>> {name: each.shape for name, each in joined.items()}
        {'output': (4, 2), 'output.lengths': (2,)}
    """
    found: dict[str, list[Any]] = {}

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                add(key, part)
        elif isinstance(value, list):
            found.setdefault(name, []).extend(value)
            found.setdefault(f"{name}.lengths", []).append(len(value))
        else:
            found.setdefault(name, []).append(value)

    for each in results:
        add("output", each)
    return {name: np.array(values) for name, values in found.items()}
