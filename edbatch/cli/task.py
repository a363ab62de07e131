"""Loads the task of a command: a model, the shapes of its parameters, and instances."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from edbatch.cli import user_code
from edbatch.cli.console import stage
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.options import TaskOptions
from edbatch.errors import EdbatchError
from edbatch.models import WORKLOADS, Workload, get_workload


@dataclass(frozen=True)
class Task:
    """A model and its instances.

    Attributes:
        description: A description in the words of the command line.
        model: ``model(params, instance)``.
        params: Its parameters, or their shapes.
        instances: The instances, at least one.
    """

    description: str
    model: Callable[[Any, Any], Any]
    params: Any
    instances: Sequence[Any]

    @contextmanager
    def params_hint(self) -> Iterator[None]:
        """Adds a hint about --params to errors if the model was given no parameters.

        Raises:
            CommandError: An error of edbatch, with the hint.
        """
        try:
            yield
        except EdbatchError as error:
            if self.params != {}:
                raise
            raise CommandError(
                f"{error} (the model was given no parameters; name a function that"
                " returns them with --params)"
            ) from error


def find_workload(name: str, **options: Any) -> Workload:
    """Returns a ready workload; options that are None are ignored."""
    return get_workload(name, **{k: v for k, v in options.items() if v is not None})


def load_task(options: TaskOptions, seed: int, count: int, hidden: int = 2) -> Task:
    """Loads the model and instances that the options name.

    Args:
        options: A ready workload with or without data, or the user's own model.
        seed: Seed of sampled instances.
        count: Number of instances to sample if there are no data.
        hidden: Length of a ready workload's states, where it matters.

    Returns:
        The task.

    Raises:
        EdbatchError: The options are inconsistent, something that they name does not
            exist, or data cannot be read.
    """
    if options.model is not None:
        for name in ("workload", "data", "arity", "classify"):
            if getattr(options, name):
                raise CommandError(
                    f"--{name} belongs to the ready workloads but --model was given as"
                    " well; give one of --workload and --model, and read your own data"
                    " in the function of --instances"
                )
        return _own_task(options, options.model, seed, count)
    for name in ("instances", "params"):
        if getattr(options, name) is not None:
            raise CommandError(
                f"--{name} belongs to your own model but --model is missing; give"
                " --model package.module:function too"
            )
    if options.workload is None:
        raise CommandError(
            "this command needs a model: give --workload with one of"
            f" {', '.join(WORKLOADS)}, or your own with --model and --instances"
        )
    workload = find_workload(
        options.workload, arity=options.arity, classify=options.classify
    )
    return _ready_task(workload, options.data, seed, count, hidden)


def _ready_task(
    workload: Workload,
    data: Sequence[Path] | None,
    seed: int,
    count: int,
    hidden: int,
) -> Task:
    shapes = jax.eval_shape(
        lambda key: workload.init_params(key, hidden), jax.random.key(0)
    )
    if data:
        with stage(f"Reading {' '.join(map(str, data))}"):
            found = workload.read(data)
        names = " ".join(path.name for path in data)
        description = f"{workload.name} on {names}"
    else:
        with stage(f"Sampling {count} instances"):
            found = workload.sample(np.random.default_rng(seed), count)
        description = f"{workload.name} on sampled instances"
    return Task(description, workload.model, shapes, found)


def _own_task(options: TaskOptions, name: str, seed: int, count: int) -> Task:
    if options.instances is None:
        raise CommandError(
            f"--model {name} needs --instances: a function that returns a list of"
            " instances of its input, as package.module:function"
        )
    with stage("Loading the model and its instances"):
        model = user_code.find("--model", name)
        if not callable(model):
            raise CommandError(
                f"--model names a function model(params, instance) but {name!r} is a"
                f" {type(model).__name__}"
            )
        found = user_code.call(
            "--instances",
            user_code.find("--instances", options.instances),
            np.random.default_rng(seed),
            count,
        )
        params: Any = {}
        if options.params is not None:
            params = user_code.call(
                "--params",
                user_code.find("--params", options.params),
                jax.random.key(seed),
            )
    instances = _as_list(options.instances, found)
    return Task(f"{name} on {options.instances}", model, params, instances)


def _as_list(name: str, found: Any) -> list[Any]:
    try:
        instances = list(found)
    except TypeError:
        raise CommandError(
            f"--instances {name} returns a list of instances but it returned"
            f" {type(found).__name__}"
        ) from None
    if not instances:
        raise CommandError(
            f"--instances {name} returned no instance; there is nothing to batch"
        )
    return instances
