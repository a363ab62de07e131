"""Outputs of models: one structure, and one flat column per leaf.

The column of a leaf of the structure (`edbatch.graph.skeleton`) holds the leaf's values
for all instances, and for all elements of the lists around it, one after the other. So
merging graphs concatenates columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from edbatch.errors import RecordingError
from edbatch.graph.node_type import Aval
from edbatch.graph.ragged import Ragged
from edbatch.graph.skeleton import EMPTY, Mismatch, Skeleton, describe, unify, walk


@dataclass(frozen=True)
class OutputTree:
    """The structure of a model's result; hashable.

    Attributes:
        skeleton: The structure as nested tuples, see `edbatch.graph.skeleton`.

    Example:
        >>> tree = OutputTree(("list", ("value", 3)))
        >>> tree.leaves, tree.lists
        ((('value', 3),), (('list', ('value', 3)),))
    """

    skeleton: Skeleton = EMPTY

    @cached_property
    def leaves(self) -> tuple[Skeleton, ...]:
        """Its leaves, ``("value", kind)`` or ``("external", kind)``, in order."""
        parts = walk(self.skeleton)
        return tuple(each for each in parts if each[0] in ("value", "external"))

    @cached_property
    def lists(self) -> tuple[Skeleton, ...]:
        """Its lists, in the order of the columns of lengths."""
        return tuple(e for e in walk(self.skeleton) if e[0] == "list")

    def unify(self, other: "OutputTree", avals: Sequence[Aval]) -> "OutputTree":
        """Finds the structure that the outputs of different instances share.

        Args:
            other: Structure of other instances' outputs.
            avals: Shape and dtype of each array kind, for the message.

        Returns:
            The common structure; lists that were empty in one structure have the
            elements of the other.

        Raises:
            RecordingError: There is no common structure.
        """
        try:
            return OutputTree(unify(self.skeleton, other.skeleton))
        except Mismatch:
            raise RecordingError(
                "the model returns outputs of different structure, shape or dtype for"
                f" different instances: {describe(self.skeleton, avals)} and"
                f" {describe(other.skeleton, avals)}; return the same pytree for every"
                " instance; a tuple has the same length in each, so return a list where"
                " lengths differ; where one instance returns an input or a constant and"
                " others a cell's output, pass it through a cell"
            ) from None

    def renumber(self, kind: Callable[[int], int]) -> "OutputTree":
        """Renumbers the array kinds.

        Args:
            kind: Returns the new number of an array kind.

        Returns:
            The structure with the new numbers.
        """

        def renumbered(part: Skeleton) -> Skeleton:
            if part[0] in ("value", "external"):
                return (part[0], kind(part[1]))
            if part[0] == "node":
                return (*part[:2], tuple(map(renumbered, part[2])), part[3])
            if part[0] == "list":
                return (*part[:-1], renumbered(part[-1]))
            return part

        return OutputTree(renumbered(self.skeleton))


@dataclass(frozen=True)
class Outputs:
    """Outputs of all instances of a graph.

    Attributes:
        tree: Their common structure.
        columns: One ``[n] int32`` array per leaf in depth-first order: numbers of
            values, or rows of external inputs.
        lengths: One ``[m] int32`` array per list in depth-first order.
    """

    tree: OutputTree
    columns: tuple[np.ndarray, ...]
    lengths: tuple[np.ndarray, ...]

    def widen(self, tree: OutputTree) -> "Outputs":
        """Aligns the columns with a wider common structure.

        Args:
            tree: A structure that the outputs' own structure was unified into.

        Returns:
            The outputs with that structure; lists that were empty have empty columns.
        """
        if tree is self.tree:
            return self
        columns: list[np.ndarray] = []
        lengths: list[np.ndarray] = []
        own_columns, own_lengths = iter(self.columns), iter(self.lengths)
        nothing = np.zeros(0, np.int32)

        def align(own: Skeleton, wide: Skeleton) -> None:
            if own == EMPTY:
                new = OutputTree(wide)
                columns.extend([nothing] * len(new.leaves))
                lengths.extend([nothing] * len(new.lists))
            elif own[0] == "list":
                lengths.append(next(own_lengths))
                align(own[1], wide[1])
            elif own[0] == "node":
                for one, other in zip(own[2], wide[2], strict=True):
                    align(one, other)
            else:
                columns.append(next(own_columns))

        align(self.tree.skeleton, tree.skeleton)
        return Outputs(tree, tuple(columns), tuple(lengths))

    def values(self) -> list[tuple[int, np.ndarray]]:
        """Lists the values that the model returns.

        Returns:
            The array kind and the values, ``[n] int32``, of each leaf that is an output
            of a node.
        """
        pairs = zip(self.tree.leaves, self.columns, strict=True)
        return [(kind, values) for (source, kind), values in pairs if source == "value"]

    def describe(self, instances: int) -> "ResultShape":
        """Returns the static part of a minibatch's result.

        Args:
            instances: Number of instances.

        Returns:
            The structure of the result.
        """
        return ResultShape(self.tree, instances)

    def locate(self, value_row: np.ndarray) -> "ResultRows":
        """Finds the arena and pool rows of the results of a minibatch, or of a part.

        Args:
            value_row: Row of each value in its arena.

        Returns:
            The rows, not padded yet.
        """
        return self.locate_by(lambda values: value_row[values])

    def locate_by(self, row_of: Callable[[np.ndarray], np.ndarray]) -> "ResultRows":
        """Finds the rows of the results, like `locate`.

        Args:
            row_of: Given values, returns their rows.

        Returns:
            The rows, not padded yet.
        """
        rows = [
            row_of(column) if source == "value" else column + np.int32(1)
            for (source, _), column in zip(self.tree.leaves, self.columns, strict=True)
        ]
        return ResultRows(tuple(rows), self.lengths)

    def renumber_values(self, number: Callable[[np.ndarray], np.ndarray]) -> "Outputs":
        """Renumbers the values.

        Args:
            number: Returns the new numbers of values.

        Returns:
            The outputs with the new numbers.
        """
        columns = [
            number(column) if source == "value" else column
            for (source, _), column in zip(self.tree.leaves, self.columns, strict=True)
        ]
        return replace(self, columns=tuple(columns))


def align(outputs: Sequence[Outputs], avals: Sequence[Aval]) -> list[Outputs]:
    """Gives outputs a common structure.

    Args:
        outputs: Outputs of at least one graph.
        avals: Shape and dtype of each array kind, for the message.

    Returns:
        The same outputs; lists that were empty have columns like those of the others.

    Raises:
        RecordingError: Their structures differ.
    """
    tree = outputs[0].tree
    for each in outputs[1:]:
        if each.tree is not tree:
            tree = tree.unify(each.tree, avals)
    return [each.widen(tree) for each in outputs]


def join(outputs: Sequence[Outputs]) -> Outputs:
    """Concatenates the outputs of several graphs.

    Args:
        outputs: Outputs of the same structure, each with its own values or rows.

    Returns:
        The outputs of all graphs.
    """
    columns = zip(*(each.columns for each in outputs), strict=True)
    lengths = zip(*(each.lengths for each in outputs), strict=True)
    joined = [tuple(map(np.concatenate, each)) for each in (columns, lengths)]
    return Outputs(outputs[0].tree, *joined)


@dataclass(frozen=True, eq=False)
class ResultRows:
    """Rows of the results of one minibatch.

    Attributes:
        rows: One ``[n] int32`` array per leaf: rows of the leaf's arena or pool.
        lengths: One ``[m] int32`` array per list.
    """

    rows: tuple[np.ndarray, ...]
    lengths: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class ResultShape:
    """The static part of a result.

    Attributes:
        tree: Structure of the outputs.
        instances: Number of rows, B: one per instance, then padding rows.
    """

    tree: OutputTree
    instances: int

    def with_rows(self, rows: int) -> "ResultShape":
        """Returns the shape with another number of rows."""
        return replace(self, instances=rows)

    def pad(self, found: ResultRows, bucket: Callable[[str, int], int]) -> ResultRows:
        """Pads rows and lengths inside lists to buckets.

        Args:
            found: Rows of a minibatch.
            bucket: Given the name of a list and its number of elements, returns the
                padded number.

        Returns:
            The padded rows; padding is row 0, the zero row, and length 0.
        """
        rows, lengths = iter(found.rows), iter(found.lengths)
        padded_rows: list[np.ndarray] = []
        padded_lengths: list[np.ndarray] = []

        def visit(part: Skeleton, size: int) -> None:
            if part[0] == "list":
                own = next(lengths)
                padded_lengths.append(_padded(own, size))
                name = f"list {len(padded_lengths)}"
                visit(part[1], bucket(name, int(own.sum())))
            elif part[0] == "node":
                for each in part[2]:
                    visit(each, size)
            elif part[0] in ("value", "external"):
                padded_rows.append(_padded(next(rows), size))

        visit(self.tree.skeleton, self.instances)
        return ResultRows(tuple(padded_rows), tuple(padded_lengths))

    def assemble(self, found: Sequence[Array], lengths: Sequence[Array]) -> Any:
        """Builds the result on the device.

        Args:
            found: One ``[n, ...]`` array per leaf.
            lengths: Padded lengths per list.

        Returns:
            The result that ``jax.vmap`` of the model would have, with `Ragged` for
            lists.
        """
        next_leaf, next_lengths = iter(found), iter(lengths)

        def build(part: Skeleton) -> Any:
            if part[0] == "list":
                own = next(next_lengths)
                return _ragged(build(part[1]), own)
            if part[0] == "node":
                return jax.tree.unflatten(part[1], [build(each) for each in part[2]])
            return () if part == EMPTY else next(next_leaf)

        return build(self.tree.skeleton)


def _padded(array: np.ndarray, size: int) -> np.ndarray:
    padded = np.zeros(size, np.int32)
    padded[: len(array)] = array
    return padded


def _ragged(values: Any, lengths: Array) -> Ragged:
    leaves = jax.tree.leaves(values)
    total = leaves[0].shape[0] if leaves else 0
    place = jnp.arange(total, dtype=lengths.dtype)
    ends = jnp.cumsum(lengths, dtype=lengths.dtype)
    owners = jnp.searchsorted(ends, place, side="right").astype(jnp.int32)
    return Ragged(values, owners, lengths)
