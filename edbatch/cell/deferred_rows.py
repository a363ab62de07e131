"""Rows of an array that are read now and written after a ``lax.switch``.

A branch of a ``lax.switch`` that returned an array would copy it. So code in a branch
gets `DeferredRows` in place of arrays. It reads them with `edbatch.cell.rows` as usual;
its writes are collected and made in place after the switch.
"""

from typing import Literal, NamedTuple

from jax import Array

Operation = Literal["set", "add", "max"]


class Write(NamedTuple):
    """A write that has yet to be made.

    Attributes:
        operation: How the rows are updated.
        rows: Which rows: ``[R]``; a scalar, the first of R consecutive rows; None for
            all elements of the array.
        values: The new rows, or the values to add, ``[R, ...]``.
    """

    operation: Operation
    rows: Array | None
    values: Array


class DeferredRows:
    """Rows of an array, with writes that are not made yet. A leaf, not a pytree.

    Args:
        array: The array, which may also contain other rows; ``[N, ...]``.
        base: Index in `array` of the first of these rows.
        writes: The writes so far.
    """

    def __init__(
        self, array: Array, base: int = 0, writes: tuple[Write, ...] = ()
    ) -> None:
        self.array = array
        self.base = base
        self.writes = writes

    def readable(self) -> tuple[Array, int]:
        """Returns the array and the first row; nothing may have been written yet."""
        assert not self.writes, "rows are read before they are written"
        return self.array, self.base

    def written(
        self, operation: Operation, rows: Array | None, values: Array
    ) -> "DeferredRows":
        """Returns the rows with one more write."""
        write = Write(operation, rows, values)
        return DeferredRows(self.array, self.base, (*self.writes, write))
