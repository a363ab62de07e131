"""`train-policy --serving`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from edbatch.cli import options
from edbatch.cli.console import print_json, print_table, progress_bar, say
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.policy_training import LogFiles
from edbatch.cli.serving_options import METHODS, ServingOptions, ServingTraining
from edbatch.cli.simulated_server import simulated_server
from edbatch.ctrl_c import EXIT_INTERRUPTED
from edbatch.errors import nearest, shown
from edbatch.schedule.interrupt import deferred_interrupt

if TYPE_CHECKING:
    from edbatch.cli.simulated_server import SimulatedServer
    from edbatch.policies.serving import ServingMachine, ServingRule

_EPISODES = 20  # per generation
_REQUESTS = 1000


def train_serving(
    task_options: options.TaskOptions,
    given: ServingOptions,
    how: ServingTraining,
    costs: Path | None,
    seed: int,
    *,
    generations: int | None,
    out: Path | None,
    logs: LogFiles,
    json: bool,
) -> None:
    """Trains a policy for serving and writes it."""
    from edbatch.policies.serving import Objective as Goal

    goal = Goal.parse(how.objective)
    _check_method(how)
    run = _training(how, 20 if generations is None else generations)
    server = simulated_server(task_options, given, costs, seed, held_out=False)
    # Ctrl-C ends the training; a second one is deferred until the policy is saved.
    with deferred_interrupt():
        with logs.open() as write, progress_bar("{task.fields[found]}") as bar:
            row = bar.add_task("Training", total=None, found="")

            def progress(done: int, total: int, loss: float) -> None:
                bar.update(row, completed=done, total=total, found=f"loss {loss:+.3f}")
                write(done, {"validation/loss": loss})

            rule = run(
                server.library,
                server.config,
                server.arrivals,
                goal,
                requests=given.requests or _REQUESTS,
                seed=seed,
                workload=server.task.description,
                costs=server.costs,
                progress=progress,
            )
        if out is not None:
            rule.save(out)
    _report(rule, server, out, json=json)
    logs.say()
    if rule.training is not None and rule.training.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)


def _report(
    rule: "ServingRule | ServingMachine",
    server: "SimulatedServer",
    out: Path | None,
    *,
    json: bool,
) -> None:
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
                (
                    round(each) if each >= 100 or each.is_integer() else each
                    for each in training.rates
                ),
                training.best_heuristics,
                training.validation,
                strict=True,
            ),
            f"{server.task.description}: {training.objective} on arrivals that were not"
            " trained on",
        )
    if training.interrupted:
        say("Training was interrupted; this is the best policy so far.")
    say(f"Training took {training.elapsed_s:.1f} s, costs are {server.costs}.")
    say(
        "The policy was not saved; --out FILE saves it."
        if out is None
        else f"The policy is in {out}."
    )


def _check_method(how: ServingTraining) -> None:
    if how.method not in METHODS:
        raise CommandError(
            f"--method is {' or '.join(METHODS)} but is {shown(how.method)};"
            f" {nearest(how.method, METHODS)}"
        )
    if how.episodes is not None and how.method == METHODS[0]:
        raise CommandError(
            f"--episodes are those of Q-learning but --method is {how.method}; give"
            " --generations, or --method q-learning"
        )


def _training(
    how: ServingTraining, generations: int
) -> "Callable[..., ServingRule | ServingMachine]":
    """Returns the training function of the chosen method."""
    from edbatch.policies.serving import train_serving_machine, train_serving_policy

    if how.method == METHODS[0]:
        return partial(
            train_serving_policy, generations=generations, population=how.population
        )
    episodes = how.episodes or _EPISODES * generations
    return partial(train_serving_machine, episodes=episodes)
