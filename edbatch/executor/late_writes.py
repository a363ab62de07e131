"""Makes the writes of a switch's branches after the switch, in one common form.

Arrays with the same row shape, dtype and write operation are concatenated into one
array, a *group*, so that a chunk makes few writes whatever the number of types. A
branch's writes to a group are *windows* (consecutive rows) and scattered rows; those of
all branches are padded to the same number and length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.deferred_rows import DeferredRows, Operation, Write
from edbatch.cell.rows import slice_rows, write_rows


class Written(NamedTuple):
    """The writes of a branch to one array.

    Attributes:
        shape: The array's shape.
        dtype: The array's dtype.
        operation: How rows are updated; None if no row is written.
        whole: Whether a write covers all elements of the array instead of rows.
        windows: Number of rows in each write of consecutive rows.
        scattered: Total number of rows in all other writes.
    """

    shape: tuple[int, ...]
    dtype: Any
    operation: Operation | None
    whole: bool
    windows: tuple[int, ...]
    scattered: int

    @classmethod
    def of(cls, array: Array, writes: Sequence[Write]) -> "Written":
        """Describes the writes to an array."""
        operations = {each.operation for each in writes}
        assert len(operations) <= 1, "an array is written in one way"
        windows = [_window_size(each) for each in writes if _is_window(each)]
        scattered = [
            0 if each.rows is None or each.rows.ndim == 0 else each.rows.size
            for each in writes
        ]
        return cls(
            array.shape,
            array.dtype,
            next(iter(operations), None),
            any(each.rows is None for each in writes),
            tuple(windows),
            sum(scattered),
        )


def _is_window(write: Write) -> bool:
    return write.rows is None or write.rows.ndim == 0


def _window_size(write: Write) -> int:
    return write.values.size if write.rows is None else len(write.values)


@dataclass(frozen=True)
class _Group:
    """Arrays that are concatenated into one.

    Attributes:
        operation: How the arrays are written.
        members: Positions of the arrays.
        bases: First row of each array in the group.
        shapes: Shapes of the arrays.
        row: Shape of a row.
        rows: Total number of rows.
        windows: Number of rows in each window, the maximum over all branches.
        scattered: Number of scattered rows, the maximum over all branches.
    """

    operation: Operation
    members: tuple[int, ...]
    bases: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    row: tuple[int, ...]
    rows: int
    windows: tuple[int, ...]
    scattered: int


class Packed(NamedTuple):
    """A branch's writes to one group, of the same shapes in all branches.

    Attributes:
        first: First row of each window; scalars.
        counts: Number of valid rows in each window, scalars; later rows are arbitrary.
        values: Rows of each window, padded.
        rows: Scattered rows, padded with a row number out of range; ``[R]``.
        more: Values of the scattered rows, ``[R, ...]``.
    """

    first: list[Array]
    counts: list[Array]
    values: list[Array]
    rows: Array
    more: Array


@dataclass(frozen=True)
class LateWrites:
    """The common form of all branches' writes.

    Attributes:
        groups: The groups.
        arrays: Shapes of all arrays.
        kept: Positions of arrays in no group: no branch writes them, or they are empty.
    """

    groups: tuple[_Group, ...]
    arrays: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]

    @classmethod
    def of(cls, branches: Sequence[Sequence[Written]]) -> "LateWrites":
        """Finds the common form.

        Args:
            branches: The writes of each branch to each array.

        Returns:
            The common form.
        """
        by_array = list(zip(*branches, strict=True))
        found: dict[Any, list[int]] = {}
        kept = []
        for k, own in enumerate(by_array):
            operations = {each.operation for each in own} - {None}
            assert len(operations) <= 1, "an array is written in one way"
            if not operations or prod(own[0].shape) == 0:
                kept.append(k)
                continue
            row = () if any(each.whole for each in own) else own[0].shape[1:]
            key = row, str(own[0].dtype), *operations
            found.setdefault(key, []).append(k)
        groups = [
            _group(key, members, branches, [own[0].shape for own in by_array])
            for key, members in found.items()
        ]
        shapes = tuple(own[0].shape for own in by_array)
        return cls(tuple(groups), shapes, tuple(kept))

    def join(self, arrays: Sequence[Array]) -> list[Array]:
        """Concatenates the arrays of each group; appends the arrays in no group."""
        joined = []
        for group in self.groups:
            own = [arrays[k].reshape(-1, *group.row) for k in group.members]
            joined.append(own[0] if len(own) == 1 else jnp.concatenate(own))
        return [*joined, *(arrays[k] for k in self.kept)]

    def divide(self, groups: Sequence[Array]) -> list[Array]:
        """Splits the groups into arrays; the inverse of `join`."""
        arrays: dict[int, Array] = dict(
            zip(self.kept, groups[len(self.groups) :], strict=True)
        )
        for group, joined in zip(self.groups, groups, strict=False):
            for k, base, shape in zip(
                group.members, group.bases, group.shapes, strict=True
            ):
                rows = prod(shape) // prod(group.row)
                own = lax.slice_in_dim(joined, base, base + rows)
                arrays[k] = own.reshape(shape)
        return [arrays[k] for k in range(len(self.arrays))]

    def views(self, groups: Sequence[Array]) -> list[DeferredRows]:
        """Returns the arrays in the form in which a branch reads them."""
        views = dict(
            zip(self.kept, map(DeferredRows, groups[len(self.groups) :]), strict=True)
        )
        for group, joined in zip(self.groups, groups, strict=False):
            for k, base in zip(group.members, group.bases, strict=True):
                views[k] = DeferredRows(joined, base)
        return [views[k] for k in range(len(self.arrays))]

    def pack(self, rows: Sequence[DeferredRows]) -> list[Packed]:
        """Converts a branch's writes to the common form."""
        return [_pack(group, rows) for group in self.groups]

    def write(self, groups: Sequence[Array], packed: Sequence[Packed]) -> list[Array]:
        """Makes the writes, in place inside a loop."""
        done = [
            _write(group, joined, own)
            for group, joined, own in zip(self.groups, groups, packed, strict=False)
        ]
        return [*done, *groups[len(self.groups) :]]


def _group(
    key: Any,
    members: Sequence[int],
    branches: Sequence[Sequence[Written]],
    shapes: Sequence[tuple[int, ...]],
) -> _Group:
    row, _, operation = key
    bases, rows = [], 0
    for k in members:
        bases.append(rows)
        rows += prod(shapes[k]) // max(1, prod(row))
    windows: list[int] = []
    scattered = 0
    for branch in branches:
        own = sorted((x for k in members for x in branch[k].windows), reverse=True)
        windows = [max(pair) for pair in zip_longest(windows, own, fillvalue=0)]
        scattered = max(scattered, sum(branch[k].scattered for k in members))
    return _Group(
        operation,
        tuple(members),
        tuple(bases),
        tuple(shapes[k] for k in members),
        row,
        rows,
        tuple(windows),
        scattered,
    )


def _pack(group: _Group, rows: Sequence[DeferredRows]) -> Packed:
    dtype = rows[group.members[0]].array.dtype
    empty = jnp.zeros((0, *group.row), dtype)
    windows: list[tuple[Array, Array]] = []
    places: list[Array] = []
    more: list[Array] = []
    for k, base in zip(group.members, group.bases, strict=True):
        for write in rows[k].writes:
            values = write.values.reshape(-1, *group.row)
            if write.rows is None:
                windows.append((jnp.int32(base), values))
            elif write.rows.ndim == 0:
                scale = len(values) // len(write.values)  # elements of a row
                windows.append((write.rows * scale + base, values))
            else:
                places.append(write.rows.ravel() + base)
                more.append(values)
    # The longest first, as in `_group`. Windows that are set overlap only in padding
    # rows. Those of one array are equally long, so the sort keeps their order, in which
    # later windows overwrite this padding. Windows that are added may overlap.
    order = sorted(range(len(windows)), key=lambda k: -len(windows[k][1]))
    first, count, padded = [], [], []
    for position, size in enumerate(group.windows):
        if position < len(order):
            start, values = windows[order[position]]
        else:
            start, values = jnp.int32(0), empty
        first.append(start)
        count.append(jnp.int32(len(values)))
        padded.append(_padded(values, size))
    index = jnp.concatenate([jnp.zeros(0, jnp.int32), *places])
    values = jnp.concatenate([empty, *more])
    return Packed(
        first,
        count,
        padded,
        _padded(index, group.scattered, group.rows),
        _padded(values, group.scattered),
    )


def _padded(values: Array, size: int, value: int | None = None) -> Array:
    """Pads to ``size`` rows with ``value`` (0 if None); arbitrary if None and empty."""
    if len(values) == 0 and value is None:
        return lax.empty((size, *values.shape[1:]), values.dtype)
    padding = [(0, size - len(values), 0)] + [(0, 0, 0)] * (values.ndim - 1)
    return lax.pad(values, jnp.asarray(value or 0, values.dtype), padding)


def _write(group: _Group, array: Array, packed: Packed) -> Array:
    for first, count, values in zip(*packed[:3], strict=True):
        array = _write_window(group.operation, array, first, count, values)
    if group.scattered == 0:
        return array
    at, more = array.at[packed.rows], packed.more
    if group.operation == "add":
        return at.add(more, mode="drop", wrap_negative_indices=False)
    if group.operation == "max":
        return at.max(more, mode="drop", wrap_negative_indices=False)
    return at.set(more, mode="drop", wrap_negative_indices=False)


def _write_window(
    operation: Operation, array: Array, first: Array, count: Array, values: Array
) -> Array:
    """Writes the first ``count`` rows of ``values``, which end within the array."""
    size = min(len(values), len(array))
    values = values[:size]
    start = jnp.minimum(first, len(array) - size)  # shifted back near the end
    shift = first - start
    source = jnp.arange(size, dtype=jnp.int32) - shift
    is_own = ((source >= 0) & (source < count)).reshape(-1, *(1,) * (array.ndim - 1))
    before = [(size, 0, 0)] + [(0, 0, 0)] * (array.ndim - 1)
    moved = lax.pad(values, jnp.zeros((), values.dtype), before)
    moved = slice_rows(moved, size - shift, size)
    old = slice_rows(array, start, size)
    if operation == "add":
        new = jnp.where(is_own, old + moved, old)
    elif operation == "max":
        new = jnp.where(is_own, old | moved, old)
    else:
        new = jnp.where(is_own, moved, old)
    return write_rows(array, start, new)
