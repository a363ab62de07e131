"""`train-policy --serving`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edbatch.cli import options
from edbatch.cli.console import print_json, print_table, progress_bar, say
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.serving_options import METHODS, ServingOptions
from edbatch.cli.simulated_server import SimulatedServer, simulated_server
from edbatch.errors import nearest, shown

if TYPE_CHECKING:
    from edbatch.policies.serving import Objective as Goal
    from edbatch.policies.serving import ServingMachine, ServingRule

_EPISODES = 20  # per generation


def train_serving(
    task_options: options.TaskOptions,
    given: ServingOptions,
    objective: str,
    method: str,
    generations: int,
    out: Path | None,
    json: bool,
) -> None:
    """Trains a policy for serving, and writes it."""
    from edbatch.cli.output_file import check_writable
    from edbatch.policies.serving import Objective as Goal

    goal = Goal.parse(objective)
    if method not in METHODS:
        raise CommandError(
            f"--method is {' or '.join(METHODS)} but is {shown(method)};"
            f" {nearest(method, METHODS)}"
        )
    check_writable("--out", out)
    server = simulated_server(task_options, given, held_out=False)
    with progress_bar("{task.fields[found]}") as bar:
        row = bar.add_task("Training", total=3 * generations, found="")

        def progress(done: int, total: int, loss: float) -> None:
            bar.update(row, completed=done, total=total, found=f"loss {loss:+.3f}")

        rule = _train(
            server, goal, method, generations, given.requests, given.seed, progress
        )
    if out is not None:
        rule.save(out)
    training = rule.training
    assert training is not None, "train_serving_policy keeps a record"
    if json:
        print_json(
            {"out": None if out is None else str(out), "training": training.to_json()}
        )
    else:
        print_table(
            ("requests/s", "best heuristic", "learned / best"),
            zip(
                (round(each) for each in training.rates),
                training.best_heuristics,
                training.validation,
                strict=True,
            ),
            f"{server.task.description}: {training.objective} on arrivals that were not"
            " trained on",
        )
    say(f"Training took {training.elapsed_s:.1f} s, costs are {server.costs}.")
    say(
        "The policy was not saved; --out FILE saves it."
        if out is None
        else f"The policy is in {out}."
    )


def _train(
    server: SimulatedServer,
    goal: "Goal",
    method: str,
    generations: int,
    requests: int,
    seed: int,
    progress: Callable[[int, int, float], None],
) -> "ServingRule | ServingMachine":
    from edbatch.policies.serving import train_serving_machine, train_serving_policy

    if method == METHODS[0]:
        train: Any = partial(train_serving_policy, generations=generations)
    else:
        train = partial(train_serving_machine, episodes=_EPISODES * generations)
    found: ServingRule | ServingMachine = train(
        server.library,
        server.config,
        server.arrivals,
        goal,
        requests=requests,
        seed=seed,
        workload=server.task.description,
        costs=server.costs,
        progress=progress,
    )
    return found
