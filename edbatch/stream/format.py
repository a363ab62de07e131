"""The format of a stream: the fields of a chunk's record and their positions.

The record of a chunk of width W has these fields, one after the other, all int32:

* per output slot, the first row of the arena that it writes: one number;
* the number of nodes in the chunk, whose other rows are padding: one number;
* if types share the loop, the member whose parameters the chunk reads: one number;
* per external slot, the rows of the pool that it reads: W numbers;
* per operand slot, the rows of the arena that it reads: W numbers; or the first of W
  consecutive rows, one number, where the chunk's loop reads a slice.

All records of a loop have the same format, so the program finds the next record by
adding the record's length. Records are stored in execution order. A *step* is one pass
over the program's loops, and ``trips[s, p]`` counts the iterations of loop p in step s.

The writer (`edbatch.stream.encode`), the compiled program and all host code that reads
a stream locate the fields by `RecordFormat`.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from edbatch.graph.node_type import NodeType
from edbatch.stream.loop import Loop


class Record(NamedTuple):
    """The fields of one record.

    Attributes:
        outputs: First output row per output slot, scalars.
        size: Number of nodes, a scalar.
        member: Index of the member whose parameters the chunk reads, a scalar; None if
            its type has no family.
        externals: Rows to read from the pool, ``[W]``, per external slot.
        operands: Rows to read from the arena, ``[W]``, per operand slot; where the
            loop reads a slice, a scalar: the first row.
    """

    outputs: list[Any]
    size: Any
    member: Any
    externals: list[Any]
    operands: list[Any]


_FEW_SLOTS = 16  # up to this many slots are read in advance, once even if used often


class SlotRows:
    """The rows of each slot of a record; those of a padded list as one array.

    A program that assembles the rows of a list slot by slot takes long to compile: a
    gradient with a list of 128 operands takes more than 40 s instead of 2. So if there
    are many slots, the rows of a slot are read only when they are requested.

    Args:
        record: The record; ``[length] int32``.
        starts: First integer of each slot, then the end of the last one.
        width: Rows of a chunk, W.
        sliced: Slots for which the record has the first row only.
    """

    def __init__(
        self, record: Any, starts: Sequence[int], width: int, sliced: Sequence[int] = ()
    ) -> None:
        self._record, self._starts, self._width = record, starts, width
        self._sliced = frozenset(sliced)
        few = len(starts) - 1 <= _FEW_SLOTS
        self._ready = [self._read(slot) for slot in range(len(starts) - 1) if few]

    def of(self, slot: int) -> Any:
        """Returns the rows of a slot: ``[W] int32``, or a scalar if it is a slice."""
        return self._ready[slot] if self._ready else self._read(slot)

    def _read(self, slot: int) -> Any:
        start = self._starts[slot]
        if slot in self._sliced:
            return self._record[start]
        return self._record[start : start + self._width]

    def each(self) -> list[Any]:
        """Returns the rows of all slots, in the form of the fields of `Record`."""
        return [self.of(slot) for slot in range(len(self._starts) - 1)]

    def stacked(self, slots: Sequence[int]) -> Any:
        """Returns the rows of a list's slots.

        Args:
            slots: Slots at equal distances; these and all slots between have W rows.

        Returns:
            The rows; ``[W, number of slots] int32``.
        """
        step = slots[1] - slots[0] if len(slots) > 1 else 1
        first, end = slots[0], slots[-1] + 1
        assert list(slots) == list(range(first, end, step)), "they are those of a list"
        rows = self._record[self._starts[first] : self._starts[end]]
        return rows.reshape(end - first, self._width)[::step].T


class RecordFormat(NamedTuple):
    """Positions of the fields in a loop's records.

    Attributes:
        outputs: Number of output slots.
        externals: Number of external slots.
        has_member: Whether a record has the index of a member of a family.
        width: Rows of a chunk, W.
        sliced: Operand slots that are read as slices.
        starts: First integer of each field, then the length of the record.
    """

    outputs: int
    externals: int
    has_member: bool
    width: int
    sliced: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of integers in a record."""
        return self.starts[-1]

    @property
    def least_stream(self) -> int:
        """Minimum length in integers of a stream that a loop with such records reads.

        It is more than one record: if a record were the whole stream, XLA would compute
        the cell before the loop, even where the loop has no iterations.
        """
        return self.length + 1

    def read(self, record: Any) -> Record:
        """Splits a record into its fields.

        Args:
            record: The record, a NumPy or JAX array; ``[length] int32``.

        Returns:
            Its fields.
        """
        externals, operands = self.slot_rows(record)
        return Record(*self.read_head(record), externals.each(), operands.each())

    def read_head(self, record: Any) -> tuple[list[Any], Any, Any]:
        """Reads the first fields of a record.

        Args:
            record: As for `read`.

        Returns:
            The outputs, size and member of `Record`.
        """
        size = self.outputs
        outputs = [record[self.starts[k]] for k in range(size)]
        member = record[self.starts[size + 1]] if self.has_member else None
        return outputs, record[self.starts[size]], member

    def slot_rows(self, record: Any) -> tuple[SlotRows, SlotRows]:
        """Reads the rows of a record.

        Args:
            record: As for `read`.

        Returns:
            The rows of external slots and of operand slots.
        """
        start = self.outputs + 1 + self.has_member
        first = start + self.externals
        externals = SlotRows(record, self.starts[start : first + 1], self.width)
        operands = SlotRows(record, self.starts[first:], self.width, self.sliced)
        return externals, operands

    def write(self, fields: Record) -> np.ndarray:
        """Writes a record on the host; the inverse of `read`.

        Args:
            fields: The fields, numbers and NumPy arrays.

        Returns:
            The record, ``[length] int32``.
        """
        member = [fields.member] if self.has_member else []
        rows = *fields.externals, *fields.operands
        parts = (*fields.outputs, fields.size, *member, *rows)
        record = np.concatenate([np.atleast_1d(np.int32(each)) for each in parts])
        assert len(record) == self.length, "a field has another length"
        return record


def record_format(node_type: NodeType, loop: Loop) -> RecordFormat:
    """Returns the format of a loop's records.

    Args:
        node_type: The loop's type.
        loop: The loop.

    Returns:
        The format.

    Example:
        >>> from types import SimpleNamespace as Type
        >>> join = Type(
        ...     output_kinds=[0], external_kinds=[], operand_kinds=[0, 0], family=None
        ... )
        >>> record_format(join, Loop(0, 8, sliced=(1,))).starts
        (0, 1, 2, 10, 11)
    """
    outputs, externals = len(node_type.output_kinds), len(node_type.external_kinds)
    has_member = node_type.family is not None
    operands = range(len(node_type.operand_kinds))
    lengths = [
        *[1] * (outputs + 1 + has_member),
        *[loop.width] * externals,
        *[1 if slot in loop.sliced else loop.width for slot in operands],
    ]
    starts = tuple(accumulate(lengths, initial=0))
    return RecordFormat(outputs, externals, has_member, loop.width, loop.sliced, starts)


def record_formats(
    types: Sequence[NodeType], loops: Sequence[Loop]
) -> list[RecordFormat]:
    """Returns the format of each loop's records.

    Args:
        types: All types, by their ids.
        loops: The loops.

    Returns:
        One format per loop.
    """
    return [record_format(types[loop.type_id], loop) for loop in loops]


def field_starts(formats: Sequence[RecordFormat]) -> np.ndarray:
    """Returns the start of each field, as a table for compiled host code.

    Args:
        formats: P formats.

    Returns:
        For each format its `RecordFormat.starts`, padded to the end of the row by
        repeating the length; ``[P, F + 1] int64`` for F fields in the longest record.
    """
    most = max((len(each.starts) for each in formats), default=1)
    rows = [
        each.starts + each.starts[-1:] * (most - len(each.starts)) for each in formats
    ]
    return np.array(rows, np.int64).reshape(len(formats), most)


class Chunks(NamedTuple):
    """The ``C`` chunks of a stream, in the order of execution.

    Attributes:
        step: Step of each chunk; ascending.
        loop: Position of each chunk's loop in the program's loops.
        start: Where each chunk's record starts, then the end of the last record.
    """

    step: np.ndarray  # [C] int64
    loop: np.ndarray  # [C] int64
    start: np.ndarray  # [C + 1] int64


def find_chunks(formats: Sequence[RecordFormat], trips: np.ndarray) -> Chunks:
    """Finds the records of a stream.

    Args:
        formats: The formats of the program's loops.
        trips: Iterations of each loop in each step; ``[S, P] int32``.

    Returns:
        The chunks. Takes O(C + S P) time.
    """
    step, loop = np.nonzero(trips)
    counts = trips[step, loop]
    step, loop = np.repeat(step, counts), np.repeat(loop, counts)
    lengths = np.array([each.length for each in formats], np.int64)[loop]
    return Chunks(step, loop, np.concatenate([[0], np.cumsum(lengths)]))
