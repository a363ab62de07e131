"""Compares serving policies on the same requests: latencies and goodput."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edbatch.policies.serving.trace import CompiledPolicy, Trace, draw_trace, serve
from edbatch.schedule.serving.arrivals import Arrivals
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.simulation import Served, ServingConfig


@dataclass(frozen=True)
class ServingScore:
    """The results of one policy at one rate.

    Attributes:
        policy: The policy's name.
        rate: Requests per second.
        mean_ms: Mean time from arrival to answer; infinite if the simulation was given
            up, as are percentiles that unanswered requests reach.
        p50_ms: Median time from arrival to answer.
        p95_ms: 95th percentile.
        p99_ms: 99th percentile.
        goodput: Requests per second that were answered within the deadline; 0 if the
            simulation was given up.
        late: Share of requests that were not answered within the deadline.
        rows_per_batch: Mean number of rows per batch.
        batches_per_wave: Mean number of batches per wave.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import Arrivals, InstanceLibrary
        >>> from edbatch.schedule.serving import ServingConfig
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(affine_costs(2))
        >>> from edbatch.policies.serving import compare_serving
        >>> [row] = compare_serving(
        ...     serving_heuristics(library)[:1],
        ...     library,
        ...     config,
        ...     [Arrivals(rate=100)],
        ...     requests=20,
        ... )
        >>> row.policy, row.rate
        ('agenda', 100)
    """

    policy: str
    rate: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    goodput: float
    late: float
    rows_per_batch: float
    batches_per_wave: float


def score(
    policy: str, rate: float, served: Sequence[Served], deadline_ms: float
) -> ServingScore:
    """Summarizes simulated runs of a policy at one rate.

    Args:
        policy: Name of the policy.
        rate: Requests per second.
        served: One or more runs; their latencies are pooled.
        deadline_ms: Time from arrival to deadline.

    Returns:
        The summary.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import Arrivals, InstanceLibrary
        >>> from edbatch.schedule.serving import ServingConfig
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(affine_costs(2))
        >>> from edbatch.policies.serving import draw_trace, serve
        >>> trace = draw_trace(library, Arrivals(rate=100), 20, 0)
        >>> served = serve(serving_heuristics(library)[0], library, config, trace)
        >>> score("agenda", 100, [served], deadline_ms=1000).late
        0.0
    """
    latency = np.concatenate([each.latency_ms for each in served])
    good = int(np.sum(latency <= deadline_ms))
    span_ms = sum(each.finish_ms.max() - each.arrival_ms[0] for each in served)
    batches = max(1, sum(each.batches for each in served))
    p50, p95, p99 = np.percentile(latency, (50, 95, 99), method="higher")
    return ServingScore(
        policy=policy,
        rate=rate,
        mean_ms=float(latency.mean()),
        p50_ms=float(p50),
        p95_ms=float(p95),
        p99_ms=float(p99),
        goodput=float(good / span_ms * 1000),
        late=1 - good / len(latency),
        rows_per_batch=sum(each.rows for each in served) / batches,
        batches_per_wave=batches / max(1, sum(each.waves for each in served)),
    )


def capacity(
    policy: CompiledPolicy,
    library: InstanceLibrary,
    config: ServingConfig,
    requests: int = 2000,
    seed: int = 0,
) -> float:
    """Measures how many requests per second a policy serves if all arrive at once.

    Args:
        policy: The policy.
        library: The instances.
        config: The server.
        requests: Number of requests.
        seed: Seed of the requests.

    Returns:
        Requests per second; 0 if the policy keeps waiting and is given up.

    Raises:
        PolicyError: As for `serve` and `draw_trace`.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> from edbatch.schedule.serving import Arrivals, InstanceLibrary
        >>> from edbatch.schedule.serving import ServingConfig
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> config = ServingConfig(affine_costs(2))
        >>> bool(capacity(serving_heuristics(library)[0], library, config, 50) > 0)
        True
    """
    trace = draw_trace(library, None, requests, seed)
    served = serve(policy, library, config, trace)
    return requests / served.finish_ms.max() * 1000


def compare_serving(
    policies: Sequence[CompiledPolicy],
    library: InstanceLibrary,
    config: ServingConfig,
    arrivals: Sequence[Arrivals],
    *,
    requests: int = 2000,
    seeds: Sequence[int] = (0, 1, 2),
    deadline_ms: float = 50.0,
) -> list[ServingScore]:
    """Serves the same requests with several policies.

    Args:
        policies: The policies, for the types of the library.
        library: The instances.
        config: The server.
        arrivals: One process per rate.
        requests: Requests per run.
        seeds: Seeds of the requests; there is one run per rate, policy and seed.
        deadline_ms: Time from arrival to deadline, for goodput.

    Returns:
        One row per rate and policy, in their order.

    Raises:
        PolicyError: As for `serve` and `draw_trace`.

    Example:
        >>> from edbatch.policies.serving import affine_costs, serving_heuristics
        >>> from edbatch.schedule.examples import chain
        >>> library = InstanceLibrary.of([chain("ab")])
        >>> rows = compare_serving(
        ...     serving_heuristics(library)[:2],
        ...     library,
        ...     ServingConfig(affine_costs(2)),
        ...     [Arrivals(rate=100)],
        ...     requests=50,
        ... )
        >>> [(row.policy, row.rate, row.late) for row in rows]
        [('agenda', 100, 0.0), ('greedy', 100, 0.0)]
    """
    rows = []
    for process in arrivals:
        traces: list[Trace] = [
            draw_trace(library, process, requests, seed) for seed in seeds
        ]
        for policy in policies:
            served = [
                serve(policy, library, config, each, deadline_ms) for each in traces
            ]
            rows.append(score(policy.name, process.rate, served, deadline_ms))
    return rows
