"""The results of a benchmark."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from edbatch.benchmark.config import BenchmarkConfig
from edbatch.benchmark.program_counts import ProgramCounts


@dataclass(frozen=True)
class TrainRow:
    """Times of value and gradient of a loss, without an optimiser.

    The loss is half the sum of the squares of all outputs (`half_squares`).

    Attributes:
        train_ms: Time of both passes per minibatch, including the plan's transfer.
        ratio_to_forward: Median ratio to the forward pass measured next to it.
        ratio_to_exact: Median ratio to `exact` measured next to it; None if `exact` was
            not measured.
        compile_s: Extra time of first runs over later ones, summed over minibatches.
        compiles: Programs compiled for value and gradient, over all minibatches.
        noise_percent: Half the interquartile range of ``train_ms``, in percent.
        max_gradient_error: Largest difference from the gradient of the unbatched model,
            relative to the largest magnitude in that parameter's gradient; None if
            nothing was compared.
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
    """Results of one system; times are means of the medians of each minibatch.

    Attributes:
        system: Its name.
        forward_ms: Time of the forward pass, including the plan's transfer.
        record_ms: Time to record all instances from scratch; 0 if nothing is recorded.
        plan_ms: Time to plan from existing recordings; 0 if nothing is planned.
        compile_s: Extra time of first runs over later ones, summed over minibatches.
        compiles: Programs compiled over all minibatches.
        max_abs_error: Largest difference from the unbatched model, over all outputs of
            all instances; None if nothing was compared.
        fresh_ms: Recording, planning and forward pass: a minibatch of new instances.
        kept_ms: Planning and forward pass: a minibatch of existing recordings.
        limit_ms: Time of the cells' matrix products at peak speed; None if the peak was
            not measured.
        instances_per_s: Instances per second at ``fresh_ms``.
        percent_of_peak: Speed of the cells' matrix products in the forward pass, in
            percent of the fastest product measured; None if the peak was not measured.
        host_percent: ``plan_ms`` in percent of ``forward_ms``.
        noise_percent: Half the interquartile range of ``forward_ms``, in percent.
        ratio_to_exact: Median ratio to the forward pass of `exact` measured next to it;
            None if `exact` was not measured.
        batches: Batches per minibatch; None if the system schedules no batches.
        in_place_percent: Percentage of operand bytes that are read as slices; None if
            the system has no plans of edbatch.
        program: Operation counts of its program; measured for `PLANNERS`.
        train: Results of value and gradient; measured on request.
        about: Description of the system and its weakness.

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
        instances: Number of instances.
        nodes: Number of nodes.
        lower_bound: Lower bound on the number of batches.
        gflop: Operations of the cells' matrix products, in 10^9.

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
        config: The configuration.
        policy: Description of the policy of the system `edbatch`, with its origin.
        device: The device and the machine.
        versions: Versions of packages, by name.
        minibatch: Facts about the minibatches.
        peak_gflops: Speed of the fastest matrix product, in 10^9 operations per second;
            None if it was not measured.
        rows: Results of each system.
        left_out: Reason for each system that cannot run this workload, by name.

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
        """Returns the row of a measured system.

        Args:
            system: The name of the system.

        Returns:
            The row of the system.
        """
        return next(each for each in self.rows if each.system == system)

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON values; infinity and NaN become strings."""
        value = {name: _finite(each) for name, each in asdict(self).items()}
        value["config"]["data"] = [str(each) for each in self.config.data]
        return value


def _finite(value: Any) -> Any:
    """Replaces infinities and NaN, which JSON lacks, with strings."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
