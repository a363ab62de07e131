"""Draws and records minibatches to train and compare policies on."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

import edbatch as eb
from edbatch.cli import user_code
from edbatch.cli.console import progress_bar, say
from edbatch.cli.one_sentence import CommandError
from edbatch.cli.task import Task
from edbatch.errors import raising_line
from edbatch.graph import DataflowGraph, GraphStructure
from edbatch.graph.recorder import AsksForValueError

# Share of the instances for validation during training; the held-out share is the same.
SHARE = 0.2
_LEAST = 500  # with fewer instances, the graphs of a fifth may all be alike

Drawn = list[NDArray[np.int64]]  # the instances of each minibatch, by their index


def samples_to_divide(drawn: int) -> int:
    """Returns how many instances to sample if they are divided by `split`.

    Args:
        drawn: Total number of instances in the minibatches.

    Example:
        >>> samples_to_divide(64), samples_to_divide(512)
        (500, 1024)
    """
    return max(_LEAST, 2 * drawn)


def split(
    count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Divides instances into training, validation and held-out ones.

    Returns:
        Indices to train on, three fifths; to validate on during training, a fifth; and
        held out, a fifth; at least one of each.

    Raises:
        CommandError: There are fewer than three instances.

    Example:
        >>> parts = split(10, np.random.default_rng(0))
        >>> [len(each) for each in parts], len({*np.concatenate(parts).tolist()})
        ([6, 2, 2], 10)
    """
    if count < 3:
        raise CommandError(
            "training needs 3 instances or more, one to validate the policy on and one"
            f" to report on, but there are {count}; give more data"
        )
    order = rng.permutation(count)
    size = max(1, round(SHARE * count))
    return order[2 * size :], order[size : 2 * size], order[:size]


def draw(
    indices: NDArray[np.int64], size: int, count: int, rng: np.random.Generator
) -> Drawn:
    """Draws minibatches.

    Args:
        indices: The instances to draw from.
        size: Instances per minibatch. They are distinct unless `indices` has fewer.
        count: Number of minibatches.
        rng: The random generator.

    Returns:
        The indices of each minibatch.

    Example:
        >>> [batch] = draw(np.arange(5), 5, 1, np.random.default_rng(0))
        >>> sorted(batch.tolist())
        [0, 1, 2, 3, 4]
    """
    twice = len(indices) < size
    return [rng.choice(indices, size, replace=twice) for _ in range(count)]


def say_if_repeated(size: int, *counts: int) -> None:
    """Warns if minibatches must contain an instance more than once.

    Args:
        size: Instances per minibatch.
        *counts: Number of instances to draw from, in each part of the data.
    """
    if min(counts) < size:
        few = min(counts)
        found = "is 1 instance" if few == 1 else f"are {few} instances"
        say(
            f"There {found} to draw minibatches of {size} from, so a minibatch contains"
            " some more than once. Give more data, or a smaller --batch-size."
        )


def record(task: Task, *groups: Drawn) -> list[list[GraphStructure]]:
    """Like `record_graphs`, but returns only the structures, which policies read."""
    return [
        [each.structure for each in group] for group in record_graphs(task, *groups)
    ]


def record_graphs(task: Task, *groups: Drawn) -> list[list[DataflowGraph]]:
    """Records each drawn instance once, and merges the recordings of each minibatch.

    Minibatches without nodes, whose instances call no cell, are left out with a
    message, because there is nothing to schedule.

    Args:
        task: The model and its instances.
        *groups: Groups of minibatches, as indices of instances.

    Returns:
        The graphs of each group.

    Raises:
        EdbatchError: The model cannot be recorded, or no minibatch of a group has a
            node.
    """
    batched = eb.batch(task.model).bind(task.params)
    used = sorted({int(k) for group in groups for batch in group for k in batch})
    recordings: dict[int, DataflowGraph] = {}
    with progress_bar() as bar, user_code.running("the model"):
        for k in bar.track(used, description="Recording instances"):
            with task.params_hint(), refusing_values():
                recordings[k] = batched.record(task.instances[k])
    merged = [
        [batched.graph([recordings[int(k)] for k in batch]) for batch in group]
        for group in groups
    ]
    found = [[each for each in group if each.num_nodes] for group in merged]
    empty = sum(map(len, merged)) - sum(map(len, found))
    if not all(found):
        raise CommandError(
            "policies schedule calls of cells, but the instances of all minibatches"
            " call none; give instances that do, or a larger --batch-size"
        )
    if empty:
        what = "minibatch has" if empty == 1 else "minibatches have"
        say(f"{empty} {what} no call of a cell, and nothing to schedule: left out.")
    return found


@contextmanager
def refusing_values() -> Iterator[None]:
    """Turns the error of a model that asks for values into a `CommandError`."""
    try:
        yield
    except AsksForValueError as error:
        raise CommandError(
            f"the model asks for a value ({raising_line(error)}), so its graph is known"
            " only once it runs, but this command plans before anything runs; give a"
            " model whose decisions depend only on the instance, such as a parser that"
            " follows gold transitions in training"
        ) from error
