"""The results of a benchmark."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from edbatch.benchmark.config import BenchmarkConfig
from edbatch.benchmark.program_counts import ProgramCounts


@dataclass(frozen=True)
class TrainRow:
    """Value and gradient of a loss, the sum of squares of all outputs; no optimiser.

    Attributes:
        train_ms: Both passes, transfers of the plan included, per minibatch.
        ratio_to_forward: Median ratio to the forward pass beside it.
        ratio_to_exact: Median ratio to `exact` beside it; None if that was not
            measured.
        compile_s: What first runs took longer than later ones, over all minibatches.
        compiles: Programs compiled for it over all minibatches.
        noise_percent: Half the distance between the quartiles of ``train_ms``.
        max_gradient_error: Largest difference from the gradient of the unbatched model,
            relative to the largest number of the parameter's; None if nothing was
            compared.
    """

    train_ms: float
    ratio_to_forward: float
    ratio_to_exact: float | None
    compile_s: float
    compiles: int
    noise_percent: float
    max_gradient_error: float | None


@dataclass(frozen=True)
class Row:
    """One system. Times are per minibatch: means of each minibatch's median.

    Attributes:
        system: Its name.
        forward_ms: The forward pass, transfers of the plan included.
        record_ms: Recording all instances anew; 0 where nothing is recorded.
        plan_ms: Planning anew from kept recordings; 0 where nothing is planned.
        compile_s: What first runs took longer than later ones, over all minibatches.
        compiles: Programs compiled over all minibatches.
        max_abs_error: Largest difference from the unbatched model, over all outputs of
            all instances; None if nothing was compared.
        fresh_ms: Recording, planning and forward: a minibatch of new instances.
        kept_ms: Planning and forward: one of recordings that are kept.
        limit_ms: The arithmetic of the cells' matrix products at the peak.
        instances_per_s: By ``fresh_ms``.
        percent_of_peak: Speed of the cells' matrix products, by the forward pass,
            relative to the fastest product measured.
        host_percent: ``plan_ms`` in percent of ``forward_ms``.
        noise_percent: Half the distance between the quartiles of ``forward_ms``.
        ratio_to_exact: Median ratio to the forward pass of `exact` beside it; None if
            that was not measured.
        batches: Batches per minibatch; None where batches are not scheduled.
        in_place_percent: Bytes of operands that are read as slices, of all.
        program: What its program consists of; measured for `PLANNERS`.
        train: Value and gradient; measured on request.
        about: What the system is, and its weakness.

    Example:
        >>> from dataclasses import fields
        >>> [field.name for field in fields(Row)][:4]
        ['system', 'forward_ms', 'record_ms', 'plan_ms']
    """

    system: str
    forward_ms: float
    record_ms: float
    plan_ms: float
    compile_s: float
    compiles: int
    max_abs_error: float | None
    fresh_ms: float
    kept_ms: float
    limit_ms: float | None
    instances_per_s: float
    percent_of_peak: float | None
    host_percent: float
    noise_percent: float
    ratio_to_exact: float | None
    batches: float | None
    in_place_percent: float | None
    program: ProgramCounts | None
    train: TrainRow | None
    about: str


@dataclass(frozen=True)
class MinibatchFacts:
    """Means over the minibatches.

    Attributes:
        instances: Instances.
        nodes: Nodes.
        lower_bound: Batches that no schedule goes below.
        gflop: 10^9 operations of the cells' matrix products.

    Example:
        >>> MinibatchFacts(64, nodes=2740.0, lower_bound=30.3, gflop=1.7).nodes
        2740.0
    """

    instances: int
    nodes: float
    lower_bound: float
    gflop: float


@dataclass(frozen=True)
class BenchmarkResult:
    """The results of a benchmark.

    Attributes:
        config: What was asked for.
        policy: The policy of the system `edbatch`, and where it comes from.
        device: What it ran on.
        versions: Versions of packages.
        minibatch: What the minibatches are like.
        peak_gflops: Speed of the fastest matrix product, 10^9 per second; None if it
            was not measured.
        rows: The systems.
        left_out: Systems that cannot run this workload, and why.

    Example:
        >>> from edbatch.benchmark import BenchmarkConfig, run_benchmark
        >>> config = BenchmarkConfig(
        ...     hidden=4, batch_size=2, minibatches=1, rounds=1, systems=("edbatch",),
        ...     policy="greedy",
        ... )
        >>> result = run_benchmark(config)
        >>> [row.system for row in result.rows], result.minibatch.instances
        (['edbatch'], 2)
    """

    config: BenchmarkConfig
    policy: str
    device: dict[str, Any]
    versions: dict[str, str]
    minibatch: MinibatchFacts
    peak_gflops: float | None
    rows: tuple[Row, ...]
    left_out: dict[str, str]

    def row(self, system: str) -> Row:
        """Returns the row of a system that was measured.

        Args:
            system: Its name.

        Returns:
            Its row.
        """
        return next(each for each in self.rows if each.system == system)

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON values; infinity and NaN by name."""
        value = {name: _finite(each) for name, each in asdict(self).items()}
        value["config"]["data"] = [str(each) for each in self.config.data]
        return value


def _finite(value: Any) -> Any:
    """Returns a value with names in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
