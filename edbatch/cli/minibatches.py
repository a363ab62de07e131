"""Minibatches to train and to compare policies on: drawn by seed, recorded once."""

import numpy as np
from numpy.typing import NDArray

import edbatch as eb
from edbatch.cli import user_code
from edbatch.cli.console import progress_bar
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.task import Task
from edbatch.errors import EdbatchError
from edbatch.graph import DataflowGraph, GraphStructure

HELD_OUT_SHARE = 0.2

Drawn = list[NDArray[np.int64]]  # the instances of each minibatch, by their index


def split(
    count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divides instances into those to train on and those held out, a fifth.

    Args:
        count: Number of instances, 2 or more.
        rng: The random generator.

    Returns:
        Indices to train on, and held out; at least one of each.

    Raises:
        CommandError: There are fewer than two instances.

    Example:
        >>> train, held_out = split(10, np.random.default_rng(0))
        >>> len(train), len(held_out), len({*train.tolist(), *held_out.tolist()})
        (8, 2, 10)
    """
    if count < 2:
        raise CommandError(
            "training needs 2 instances or more, one of them to judge the policy by,"
            f" but there is {count}; give more data"
        )
    order = rng.permutation(count)
    held_out = max(1, round(HELD_OUT_SHARE * count))
    return order[held_out:], order[:held_out]


def draw(
    indices: NDArray[np.int64], size: int, count: int, rng: np.random.Generator
) -> Drawn:
    """Draws minibatches.

    Args:
        indices: The instances to draw from.
        size: Instances per minibatch. No instance is in one twice, unless there are
            fewer instances than that.
        count: Number of minibatches.
        rng: The random generator.

    Returns:
        Indices of the instances of each minibatch.

    Example:
        >>> [batch] = draw(np.arange(5), 5, 1, np.random.default_rng(0))
        >>> sorted(batch.tolist())
        [0, 1, 2, 3, 4]
    """
    twice = len(indices) < size
    return [rng.choice(indices, size, replace=twice) for _ in range(count)]


def record(task: Task, *groups: Drawn) -> list[list[GraphStructure]]:
    """Records the instances that were drawn, each once, and merges the minibatches.

    Args:
        task: The model and its instances.
        *groups: Groups of minibatches.

    Returns:
        For each group the graphs of its minibatches.

    Raises:
        EdbatchError: The model cannot be recorded.
    """
    batched = eb.batch(task.model).bind(task.params)
    used = sorted({int(k) for group in groups for batch in group for k in batch})
    recordings: dict[int, DataflowGraph] = {}
    with progress_bar() as bar, user_code.running("the model"):
        for k in bar.track(used, description="Recording instances"):
            recordings[k] = _record(batched, task, k)
    return [
        [
            batched.graph([recordings[int(k)] for k in batch]).structure
            for batch in group
        ]
        for group in groups
    ]


def _record(batched: eb.Batched, task: Task, k: int) -> DataflowGraph:
    try:
        return batched.record(task.instances[k])
    except EdbatchError as error:
        if task.params != {}:
            raise
        raise CommandError(
            f"{error} (the model was given no parameters; name a function that returns"
            " them with --params)"
        ) from error
