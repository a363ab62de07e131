"""From rows in arenas back to what the model returned.

A list stays a list where it has the same length in every instance, and becomes
`Ragged` where lengths differ, in one minibatch or between two; it stays ragged for that
model from then on, so that the structure of the result changes at most once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from edbatch.cell.rows import take_rows
from edbatch.executor.arenas import Arenas
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.output_tree import Outputs, Skeleton, leaves
from edbatch.plan.ragged import Ragged

Path = tuple[int, ...]  # position of a list in the skeleton


@dataclass(frozen=True)
class ResultShape:
    """The static part of a result.

    Attributes:
        skeleton: As in `outputs`, with ``("fixed", n, child)`` for lists of one length
            and ``("ragged", child)`` for others.
        instances: Number of instances, B.
    """

    skeleton: Skeleton
    instances: int

    @property
    def leaves(self) -> list[Skeleton]:
        """Its leaves, ``("value", kind)`` or ``("external", kind)``, in order."""

        def walk(node: Skeleton) -> list[Skeleton]:
            if node[0] in ("ragged", "fixed"):
                return walk(node[-1])
            if node[0] == "node":
                return [leaf for each in node[2] for leaf in walk(each)]
            return [] if node[0] == "empty" else [node]

        return walk(self.skeleton)


@dataclass(frozen=True, eq=False)
class ResultRows:
    """Where results lie, for one minibatch.

    Attributes:
        rows: One ``[n] int32`` array per leaf: rows of its arena, or of its pool.
        lengths: One ``[m] int32`` array per ragged list.
    """

    rows: tuple[np.ndarray, ...]
    lengths: tuple[np.ndarray, ...]


def find_ragged(
    skeleton: Skeleton, lengths: tuple[np.ndarray, ...], seen: dict[Path, int]
) -> set[Path]:
    """Finds the lists whose length differs, and those around them.

    Args:
        skeleton: Structure of a graph's outputs.
        lengths: Its columns of lengths.
        seen: Length of each list in earlier minibatches; updated.

    Returns:
        Their positions.
    """
    ragged: set[Path] = set()
    columns = iter(lengths)

    def walk(node: Skeleton, path: Path) -> bool:
        if node[0] == "list":
            own = next(columns)
            varies = len(own) == 0 or bool((own != own[0]).any())
            varies = varies or seen.setdefault(path, int(own[0])) != own[0]
            inner = walk(node[1], (*path, 0))
            if varies or inner:
                ragged.add(path)
            return varies or inner
        if node[0] == "node":
            return any([walk(each, (*path, k)) for k, each in enumerate(node[2])])
        return False

    walk(skeleton, ())
    return ragged


def locate_results(
    graph: DataflowGraph, value_row: np.ndarray, ragged: set[Path]
) -> tuple[ResultShape, ResultRows]:
    """Finds the rows of a minibatch's results.

    Args:
        graph: The graph.
        value_row: Row of each value.
        ragged: Positions of lists to return as `Ragged`.

    Returns:
        The static part, and the rows (not padded yet).
    """
    outputs = graph.outputs
    shape = describe_results(
        outputs.skeleton, outputs.lengths, graph.num_instances, ragged
    )
    return shape, find_rows(outputs, shape, value_row)


def describe_results(
    skeleton: Skeleton,
    lengths: tuple[np.ndarray, ...],
    instances: int,
    ragged: set[Path],
) -> ResultShape:
    """Finds the structure of a minibatch's results.

    Args:
        skeleton: Structure of its outputs.
        lengths: Their columns of lengths.
        instances: Number of instances.
        ragged: Positions of lists to return as `Ragged`.

    Returns:
        The static part of the result.
    """
    columns = iter(lengths)

    def walk(node: Skeleton, path: Path) -> Skeleton:
        if node[0] == "list":
            own = next(columns)
            if path in ragged:
                return ("ragged", walk(node[1], (*path, 0)))
            return ("fixed", int(own[0]), walk(node[1], (*path, 0)))
        if node[0] == "node":
            children = tuple(walk(x, (*path, k)) for k, x in enumerate(node[2]))
            return ("node", node[1], children)
        return node

    return ResultShape(walk(skeleton, ()), instances)


def find_rows(
    outputs: Outputs, shape: ResultShape, value_row: np.ndarray
) -> ResultRows:
    """Finds the rows of results, of a whole minibatch or of a part of it.

    Args:
        outputs: Outputs of the instances.
        shape: The static part of the minibatch's result.
        value_row: Row of each value.

    Returns:
        The rows (not padded yet).
    """
    rows = [
        value_row[column] if source == "value" else column + np.int32(1)
        for (source, _), column in zip(
            leaves(outputs.skeleton), outputs.columns, strict=True
        )
    ]
    return ResultRows(tuple(rows), ragged_lengths(shape, outputs.lengths))


def ragged_lengths(
    shape: ResultShape, lengths: Sequence[np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Selects the lengths of ragged lists from those of all lists.

    Args:
        shape: The static part of a result.
        lengths: One ``[m] int32`` array per list.

    Returns:
        Those of ragged lists.
    """
    columns = iter(lengths)
    kept: list[np.ndarray] = []

    def walk(node: Skeleton) -> None:
        if node[0] in ("ragged", "fixed"):
            own = next(columns)
            if node[0] == "ragged":
                kept.append(own)
            walk(node[-1])
        elif node[0] == "node":
            for each in node[2]:
                walk(each)

    walk(shape.skeleton)
    return tuple(kept)


def pad_results(
    found: ResultRows, shape: ResultShape, bucket: Callable[[str, int], int]
) -> ResultRows:
    """Pads rows and lengths inside ragged lists to buckets.

    Args:
        found: Rows of a minibatch.
        shape: Its static part.
        bucket: Gives the size of a named bucket that holds a number of elements.

    Returns:
        The padded rows; padding is the zero row, and length 0.
    """
    rows, lengths = iter(found.rows), iter(found.lengths)
    padded_rows: list[np.ndarray] = []
    padded_lengths: list[np.ndarray] = []

    def pad(array: np.ndarray, size: int) -> np.ndarray:
        padded = np.zeros(size, np.int32)
        padded[: len(array)] = array
        return padded

    def walk(node: Skeleton, size: int) -> None:
        if node[0] == "ragged":
            own = next(lengths)
            padded_lengths.append(pad(own, size))
            name = f"list {len(padded_lengths)}"
            walk(node[1], bucket(name, int(own.sum())))
        elif node[0] == "fixed":
            walk(node[2], size * node[1])
        elif node[0] == "node":
            for each in node[2]:
                walk(each, size)
        elif node[0] in ("value", "external"):
            padded_rows.append(pad(next(rows), size))

    walk(shape.skeleton, shape.instances)
    return ResultRows(tuple(padded_rows), tuple(padded_lengths))


def take_results(
    shape: ResultShape, rows: Sequence[Array], arenas: Arenas, pools: Arenas
) -> tuple[Array, ...]:
    """Gathers the leaves of the result on the device.

    Args:
        shape: Its static part.
        rows: Padded rows per leaf.
        arenas: Values by array kind.
        pools: External inputs by array kind.

    Returns:
        One ``[n, ...]`` array per leaf.
    """
    sources = {"value": arenas, "external": pools}
    return tuple(
        take_rows(sources[source][kind], own)
        for (source, kind), own in zip(shape.leaves, rows, strict=True)
    )


def assemble(
    shape: ResultShape, found: Sequence[Array], lengths: Sequence[Array]
) -> Any:
    """Builds the result on the device.

    Args:
        shape: Its static part.
        found: The leaves, as `take_results` gives them.
        lengths: Padded lengths per ragged list.

    Returns:
        What ``jax.vmap`` of the model would return, with `Ragged` for lists of
        differing length.
    """
    next_leaf, next_lengths = iter(found), iter(lengths)

    def walk(node: Skeleton) -> Any:
        if node[0] == "ragged":
            own = next(next_lengths)
            values = walk(node[1])
            return _ragged(values, own)
        if node[0] == "fixed":
            count = node[1]
            values = walk(node[2])
            return [
                jax.tree.map(lambda each, k=k: each[k::count], values)
                for k in range(count)
            ]
        if node[0] == "node":
            return jax.tree.unflatten(node[1], [walk(each) for each in node[2]])
        if node[0] == "empty":
            return ()
        return next(next_leaf)

    return walk(shape.skeleton)


def _ragged(values: Any, lengths: Array) -> Ragged:
    leaves = jax.tree.leaves(values)
    total = leaves[0].shape[0] if leaves else 0
    place = jnp.arange(total)
    ends = jnp.cumsum(lengths)
    owners = jnp.searchsorted(ends, place, side="right").astype(jnp.int32)
    return Ragged(values, owners, lengths)
