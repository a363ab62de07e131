"""The server that `train-policy --serving` and `compare --serving` simulate."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edbatch.cli import options
from edbatch.cli.console import stage
from edbatch.cli.serving_options import ServingOptions, parse_rates

if TYPE_CHECKING:
    import numpy as np

    from edbatch.cli.task import Task
    from edbatch.policies.serving import ServingHeuristic
    from edbatch.schedule.serving import Arrivals, InstanceLibrary, ServingConfig

_SAMPLES = 500


@dataclass(frozen=True, eq=False)
class SimulatedServer:
    """A server and its requests, as simulated by both commands.

    Attributes:
        task: The model and its instances.
        library: The recorded instances that requests are drawn from.
        config: The costs of batches and waves.
        heuristics: The serving heuristics for the model's types.
        arrivals: The arrival process of each rate.
        capacity: Requests per second that the best heuristic can serve.
        costs: Description of the source of the costs, for messages.
    """

    task: "Task"
    library: "InstanceLibrary"
    config: "ServingConfig"
    heuristics: "tuple[ServingHeuristic, ...]"
    arrivals: "list[Arrivals]"
    capacity: float
    costs: str


def simulated_server(
    task_options: options.TaskOptions,
    given: ServingOptions,
    costs: Path | None,
    seed: int,
    *,
    held_out: bool,
) -> SimulatedServer:
    """Loads a task, and makes the server and the arrivals that options describe.

    Args:
        task_options: The model to serve and its instances.
        given: The options of the simulation.
        costs: Costs of batches, a file of `edbatch calibrate`; None for a guess.
        seed: Seed of the division into training and held-out instances.
        held_out: Whether requests use held-out instances instead of training ones.

    Returns:
        The simulated server.

    Raises:
        CommandError: An option is invalid.
    """
    import numpy as np

    from edbatch.cli.minibatches import record, split
    from edbatch.cli.task import load_task
    from edbatch.policies import load_costs
    from edbatch.policies.serving import (
        affine_costs,
        batch_costs,
        capacity,
        serving_heuristics,
    )
    from edbatch.schedule.serving import Arrivals, InstanceLibrary, ServingConfig

    wanted = parse_rates(given.rates)
    measured = None if costs is None else load_costs(costs)
    task = load_task(task_options, seed, _SAMPLES)
    rng = np.random.default_rng(seed)
    to_train, _, kept = split(len(task.instances), rng)
    used = (kept if held_out else to_train)[:_SAMPLES]
    (structures,) = record(task, _one_by_one(used))
    library = InstanceLibrary.of(structures)
    if measured is None:
        table = affine_costs(library.num_types, max_rows=given.max_rows)
        source = "not measured (50 µs per batch and 2 µs per row), see --costs"
    else:
        table = batch_costs(measured, library.type_keys, given.max_rows)
        source = f"those of {costs}"
    config = ServingConfig(table, given.overhead_us / 1000)
    heuristics = serving_heuristics(library)
    with stage("Measuring what heuristics can serve (Numba may compile for a minute)"):
        most = max(capacity(each, library, config) for each in heuristics)
    rates = [number * most if is_share else number for number, is_share in wanted]
    arrivals = [Arrivals(rate, given.burst) for rate in rates]
    return SimulatedServer(task, library, config, heuristics, arrivals, most, source)


def _one_by_one(indices: "np.ndarray") -> "list[np.ndarray]":
    return [indices[k : k + 1] for k in range(len(indices))]
