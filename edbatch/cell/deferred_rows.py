"""Rows of an array, read now and written after a ``lax.switch``.

A branch of a ``lax.switch`` that returned an array would copy it. So what runs in a
branch gets `DeferredRows` in place of arrays: it reads them as ever, by
`edbatch.cell.rows`, and its writes are collected, to be made in place after the switch.
"""

from typing import Literal, NamedTuple

from jax import Array

Operation = Literal["set", "add", "max"]


class Write(NamedTuple):
    """A write that is to be made.

    Attributes:
        operation: What becomes of the rows.
        rows: Which rows: ``[R]``; a scalar, the first of R consecutive ones; None for
            all elements of the array.
        values: The new rows, or what to add, ``[R, ...]``.
    """

    operation: Operation
    rows: Array | None
    values: Array


class DeferredRows:
    """Rows of an array, with writes that are not made yet. No pytree, but a leaf.

    Args:
        array: The array, which may hold others, too; ``[N, ...]``.
        base: Its first row that counts.
        writes: The writes so far.
    """

    def __init__(
        self, array: Array, base: int = 0, writes: tuple[Write, ...] = ()
    ) -> None:
        self.array = array
        self.base = base
        self.writes = writes

    def readable(self) -> tuple[Array, int]:
        """Returns the array and the first row, as nothing has been written yet."""
        assert not self.writes, "rows are read before they are written"
        return self.array, self.base

    def written(
        self, operation: Operation, rows: Array | None, values: Array
    ) -> "DeferredRows":
        """Returns the rows with one more write."""
        write = Write(operation, rows, values)
        return DeferredRows(self.array, self.base, (*self.writes, write))
