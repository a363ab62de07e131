"""Runs a benchmark, from its configuration to its result."""

import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import metadata
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch.benchmark.compile_counter import CompileCount, count_compiles
from edbatch.benchmark.config import PLANNERS, BenchmarkConfig
from edbatch.benchmark.measure import (
    Reference,
    Samples,
    WarmUp,
    alternate,
    noise_percent,
    ratio,
    typical,
    warm_up,
)
from edbatch.benchmark.minibatches import (
    MeasuredModel,
    choose_policy,
    draw_minibatches,
    ready_model,
)
from edbatch.benchmark.peak import peak_gflops
from edbatch.benchmark.program_counts import ProgramCounts, count_program
from edbatch.benchmark.result import BenchmarkResult, MinibatchFacts, Row, TrainRow
from edbatch.benchmark.systems import Batched, System, Unbatched, make_system
from edbatch.cell.flops import count_flops
from edbatch.compilation.settings import fine_only
from edbatch.errors import UnsupportedError
from edbatch.graph import DataflowGraph
from edbatch.graph.node_keys import GENERATOR
from edbatch.plan import Plan
from edbatch.schedule.lower_bound import lower_bound
from edbatch.target import usable_cores

Progress = Callable[[int, int, str], None]

_PACKAGES = ("edbatch", "jax", "jaxlib", "numpy", "numba")


class _ProgressTracker:
    """Reports the progress of a benchmark."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._done, self._total = 0, total
        self.what = ""

    def start(self, what: str) -> None:
        self.what = what
        self._report()

    def tick(self) -> None:
        self._done += 1
        self._report()

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total, self.what)


@fine_only
def run_benchmark(
    config: BenchmarkConfig,
    progress: Progress | None = None,
    model: MeasuredModel | None = None,
) -> BenchmarkResult:
    """Compares systems on the same minibatches.

    Args:
        config: The configuration.
        progress: Called as ``progress(done, total, what)``.
        model: A custom model, used instead of the workload that `config` names; the
            configuration's options, data and hidden size are then ignored.

    Returns:
        The result. A system that cannot run the model is left out, with the reason.

    Raises:
        EdbatchError: The workload, the data, the model or the policy cannot be used.

    Example:
        >>> config = BenchmarkConfig(
        ...     hidden=4, batch_size=2, minibatches=1, rounds=1, systems=("edbatch",),
        ...     policy="greedy",
        ... )
        >>> result = run_benchmark(config)
        >>> result.row("edbatch").max_abs_error < 1e-5
        True
    """
    numpy_rng = np.random.default_rng(config.seed)
    if model is None:
        model = ready_model(config, numpy_rng)
    drawn = draw_minibatches(model.instances, config, numpy_rng)
    policy, described = choose_policy(model, config, drawn.training)
    names = config.measured
    rounds = 1 if config.compiles_only else config.rounds
    count = len(drawn.measured)
    tracker = _ProgressTracker(progress, count * (1 + len(names) * (1 + rounds)))
    train = config.train
    rng = jax.random.key(config.seed, impl=GENERATOR)
    systems = _systems(config, model, policy, rng)
    with count_compiles() as compiles:
        reference = Unbatched(model.function, model.params, rng)
        tracker.start("warming up unbatched")
        references = None
        if not config.compiles_only:
            first = warm_up(
                reference, drawn.measured, None, compiles, tracker.tick, train=train
            )
            references = [_reference(reference, each, train) for each in first.plans]
        warm, left_out = _warm_up(
            systems, drawn.measured, references, compiles, tracker, train
        )
        if references and "unbatched" in warm:  # the cells were compiled already
            warm["unbatched"] = _without_error(first)
    kept = [each for each in systems if each.name in warm]
    tracker.start("measuring")
    samples = alternate(
        kept,
        [warm[each.name] for each in kept],
        drawn.measured,
        rounds,
        tracker.tick,
        train=train,
    )
    graphs = _graphs(model, drawn.measured)
    peak = None
    if not config.compiles_only:
        tracker.start("the peak")
        peak = peak_gflops(graphs[0], config.seed)
    facts = _facts(graphs, config)
    timed = {each.name: one for each, one in zip(kept, samples, strict=True)}
    exact = timed.get("exact")
    return BenchmarkResult(
        config=config,
        policy=described,
        device=_device(),
        versions={each: _version(each) for each in _PACKAGES},
        minibatch=facts,
        peak_gflops=peak,
        rows=tuple(
            _row(each, warm[each.name], timed[each.name], exact, facts, peak)
            for each in kept
        ),
        left_out=left_out,
    )


def _systems(
    config: BenchmarkConfig, model: MeasuredModel, policy: Any, rng: Any
) -> list[System]:
    are_policies = bool(config.policies) and not config.compiles_only
    return [
        make_system(
            each,
            model.function,
            model.params,
            policy,
            rng=rng,
            is_policy=are_policies,
        )
        for each in config.measured
    ]


def _reference(system: Unbatched, instances: list[Any], train: bool) -> Reference:
    results = system.results(instances, system.forward(instances))
    return Reference(results, system.train(instances)[1] if train else None)


def _without_error(warm: WarmUp) -> WarmUp:
    forward = replace(warm.forward, max_error=0.0)
    train = replace(warm.train, max_error=0.0) if warm.train else None
    return WarmUp(warm.plans, forward, train)


def _warm_up(
    systems: list[System],
    minibatches: list[list[Any]],
    references: list[Reference] | None,
    compiles: CompileCount,
    tracker: _ProgressTracker,
    train: bool,
) -> tuple[dict[str, WarmUp], dict[str, str]]:
    """Warms up every system; also returns the systems that cannot run, and why."""
    warm, left_out = {}, {}
    for system in systems:
        tracker.start(f"warming up {system.name}")
        try:
            warm[system.name] = warm_up(
                system, minibatches, references, compiles, tracker.tick, train=train
            )
        except UnsupportedError as error:
            left_out[system.name] = str(error)
    return warm, left_out


def _graphs(model: MeasuredModel, minibatches: list[list[Any]]) -> list[DataflowGraph]:
    recorder = eb.batch(model.function, params=model.params)
    return [recorder.graph(each) for each in minibatches]


def _facts(graphs: list[DataflowGraph], config: BenchmarkConfig) -> MinibatchFacts:
    return MinibatchFacts(
        instances=config.batch_size,
        nodes=_mean(each.num_nodes for each in graphs),
        lower_bound=_mean(lower_bound(each.structure) for each in graphs),
        gflop=_mean(count_flops(each) for each in graphs) / 1e9,
    )


def _row(
    system: System,
    warm: WarmUp,
    samples: Samples,
    exact: Samples | None,
    facts: MinibatchFacts,
    peak: float | None,
) -> Row:
    forward_ms, record_ms, plan_ms = (
        typical(each)
        for each in (samples.forward_ms, samples.record_ms, samples.plan_ms)
    )
    if isinstance(system, Unbatched):
        record_ms = plan_ms = 0.0  # it neither records nor plans
    plans = [each for each in warm.plans if isinstance(each, Plan)]
    reports = [each.report for each in plans]
    gflops = facts.gflop / (forward_ms / 1e3)
    return Row(
        system=system.name,
        forward_ms=forward_ms,
        record_ms=record_ms,
        plan_ms=plan_ms,
        compile_s=warm.forward.compile_s(samples.forward_ms),
        compiles=warm.forward.num_compiles,
        max_abs_error=warm.forward.max_error,
        fresh_ms=record_ms + plan_ms + forward_ms,
        kept_ms=plan_ms + forward_ms,
        limit_ms=None if peak is None else 1e3 * facts.gflop / peak,
        instances_per_s=facts.instances / (forward_ms + record_ms + plan_ms) * 1e3,
        percent_of_peak=None if peak is None else 100 * gflops / peak,
        host_percent=100 * plan_ms / forward_ms,
        noise_percent=noise_percent(samples.forward_ms),
        ratio_to_exact=None
        if exact is None
        else ratio(samples.forward_ms, exact.forward_ms),
        batches=_mean(each.batches for each in reports if each) if reports else None,
        in_place_percent=_mean(_in_place_percent(each) for each in plans)
        if plans
        else None,
        program=_count_program(system, warm),
        train=_train_row(warm, samples, exact),
        about=system.about,
    )


def _train_row(
    warm: WarmUp, samples: Samples, exact: Samples | None
) -> TrainRow | None:
    if warm.train is None or samples.train_ms is None:
        return None
    exact_ms = None if exact is None else exact.train_ms
    return TrainRow(
        train_ms=typical(samples.train_ms),
        ratio_to_forward=ratio(samples.train_ms, samples.forward_ms),
        ratio_to_exact=None if exact_ms is None else ratio(samples.train_ms, exact_ms),
        compile_s=warm.train.compile_s(samples.train_ms),
        compiles=warm.train.num_compiles,
        noise_percent=noise_percent(samples.train_ms),
        max_gradient_error=warm.train.max_error,
    )


def _in_place_percent(plan: Plan) -> float:
    report = plan.report
    assert report is not None, "plans are made with a report"
    return 100 * report.sliced_bytes / max(1, report.operand_bytes)


def _count_program(system: System, warm: WarmUp) -> ProgramCounts | None:
    if not isinstance(system, Batched) or system.name not in PLANNERS:
        return None
    run = jax.jit(partial(system.batched.apply, rng=system.rng))
    return count_program(run, system.params, warm.plans[0])


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _device() -> dict[str, Any]:
    [device, *_] = jax.devices()
    return {
        "platform": device.platform,
        "kind": device.device_kind,
        "count": jax.device_count(),
        "cores": usable_cores(),
        "machine": platform.machine(),
        "processor": _processor(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].partition(":")[2].strip() if names else platform.processor()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
