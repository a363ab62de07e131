"""Coarse programs, which compile fast because they have one loop body per type.

They run the streams of fine programs, which have a loop per type, width and set of
slices. A chunk is cut into parts of the greatest width that divides the widths of all
loops of its type; parts that contain only padding are skipped. A slot is gathered
unless all of these loops read it as a slice.

Gain (`experiments/first_gradient.py`, docs/results.md): the first gradient is ready
after 0.9 s for tree-lstm and 4.6 s for a network of 17 types, for which the fine
program takes 10 s and 12 s to compile. Until the fine program is ready, a step takes 7
to 11 times as long.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from edbatch.cell.rows import slice_rows, take_rows
from edbatch.executor.chunk import Chunk
from edbatch.executor.loop_name import loop_name
from edbatch.executor.program import ProgramShape
from edbatch.executor.touched import joined, part_of, touched
from edbatch.stream.format import SlotRows, field_starts, record_format
from edbatch.stream.loop import Loop

_State = TypeVar("_State")
_Carry = tuple[Array, _State]  # position in the records, state


class TypeLoops(NamedTuple):
    """The loops of one type, as a range of the program's loops.

    Attributes:
        first: Position of the first loop in the program's loops.
        last: Position after the last one.
        common: The loop that replaces them: it runs all their chunks, part by part.
    """

    first: int
    last: int
    common: Loop


def type_loops(loops: Sequence[Loop]) -> list[TypeLoops]:
    """Groups the loops of a program by type.

    Args:
        loops: The loops in program order: those of one type are adjacent.

    Returns:
        One group per type, in the same order.

    Example:
        >>> type_loops([Loop(3, 24, (0, 1)), Loop(3, 16, (1,))])[0].common
        Loop(type_id=3, width=8, sliced=(1,))
    """
    groups = []
    first = 0
    for type_id, members in groupby(loops, lambda each: each.type_id):
        own = list(members)
        width = math.gcd(*(each.width for each in own))
        sliced = set.intersection(*(set(each.sliced) for each in own))
        common = Loop(type_id, width, tuple(sorted(sliced)))
        groups.append(TypeLoops(first, first + len(own), common))
        first += len(own)
    return groups


def coarse_step(
    program: ProgramShape,
    records: Array,
    body_of: Callable[[Loop], Callable[[Chunk, _State], _State]],
    *,
    reverse: bool,
) -> Callable[[Array, _Carry[_State]], _Carry[_State]]:
    """Returns a function that visits the chunks of a step, part by part.

    Args:
        program: The program.
        records: Records of all chunks; ``[I] int32``.
        body_of: Returns a loop's body, from a chunk and a state to the next state.
        reverse: Whether to visit parts from the last to the first.

    Returns:
        A function from the step's trips, the position in the records and the state to
        the next position and state.
    """
    groups = type_loops(program.loops)
    visits = [
        _visit(_Parts.of(program, group, records, reverse), body_of(group.common))
        for group in groups
    ]

    def step(trips: Array, carry: _Carry[_State]) -> _Carry[_State]:
        pairs = list(zip(groups, visits, strict=True))
        for group, visit in reversed(pairs) if reverse else pairs:
            at, state = carry
            type_id = group.common.type_id
            part = part_of(state, touched(program, [type_id]))
            name = loop_name(program.types.types[type_id], group.common)
            with jax.named_scope(name):
                at, part = visit(trips[group.first : group.last], (at, part))
            carry = at, joined(state, part)
        return carry

    return step


def _visit(
    parts: "_Parts", body: Callable[[Chunk, _State], _State]
) -> Callable[[Array, _Carry[_State]], _Carry[_State]]:
    """Returns a loop over the parts of all chunks of one type in a step."""

    def visit(trips: Array, carry: _Carry[_State]) -> _Carry[_State]:
        at, state = carry
        ends = lax.cumsum(trips * parts.tables[:, 0, 0])
        start = at - ends[-1] if parts.reverse else at
        ends += start
        stop = start if parts.reverse else ends[-1]

        def run(carry: Any) -> Any:
            at, begin, state = carry
            chunk, at, begin = parts.read(ends, at, begin)
            return at, begin, body(chunk, state)

        at, _, state = lax.while_loop(
            lambda carry: carry[0] != stop, run, (at, jnp.int32(0), state)
        )
        return at, state

    return visit


@dataclass(frozen=True, eq=False)
class _Parts:
    """Reads the chunks of one type, part by part.

    Attributes:
        program: The program.
        common: The loop that runs the parts.
        records: Records of all chunks.
        reverse: Whether to read from the last part to the first.
        tables: For each of ``n`` loops: the length of its records (in the first row,
            repeated), then for each slot its start in the record, and 1 if the record
            has a number per row or 0 if it has the first row only;
            ``[n, 1 + slots, 2] int32``.
    """

    program: ProgramShape
    common: Loop
    records: Array
    reverse: bool
    tables: np.ndarray

    @classmethod
    def of(
        cls, program: ProgramShape, group: TypeLoops, records: Array, reverse: bool
    ) -> "_Parts":
        """Builds the tables for a type's loops."""
        node_type = program.types.types[group.common.type_id]
        loops = program.loops[group.first : group.last]
        starts = field_starts([record_format(node_type, each) for each in loops])
        has_member = node_type.family is not None
        header = len(node_type.output_kinds) + 1 + has_member
        externals = len(node_type.external_kinds)
        slots = externals + len(node_type.operand_kinds)
        tables = np.ones((len(loops), 1 + slots, 2), np.int32)
        tables[:, 0] = starts[:, -1:]
        tables[:, 1:, 0] = starts[:, header:-1]
        for table, loop in zip(tables, loops, strict=True):
            table[[1 + externals + slot for slot in loop.sliced], 1] = 0
        return cls(program, group.common, records, reverse, tables)

    def read(self, ends: Array, at: Array, begin: Array) -> tuple[Chunk, Array, Array]:
        """Reads the next part.

        Args:
            ends: Where the records of each loop end in this step; ``[n] int32``.
            at: Where the chunk's record starts; in reverse, where it ends.
            begin: The part's first row in the chunk. In reverse: the first row of the
                part read last; 0 if the next part is the first read of its chunk.

        Returns:
            The part as a chunk, and the next `at` and `begin`.
        """
        node_type = self.program.types.types[self.common.type_id]
        width, outputs = self.common.width, len(node_type.output_kinds)
        loop = (at > ends if self.reverse else at >= ends).sum(dtype=jnp.int32)
        table = take_rows(jnp.asarray(self.tables), loop)
        length = table[0, 0]
        first = at - length if self.reverse else at
        has_member = node_type.family is not None
        header = slice_rows(self.records, first, outputs + 1 + has_member)
        size = header[outputs]
        if self.reverse:
            last = size - 1 - lax.rem(size - 1, jnp.int32(width))
            begin = after = lax.select(begin > 0, begin - width, last)
            next_at = lax.select(begin > 0, at, first)
        else:
            is_last = begin + width >= size
            after = lax.select(is_last, jnp.int32(0), begin + width)
            next_at = lax.select(is_last, at + length, at)
        chunk = Chunk(
            node_type,
            self.program.options.target,
            width,
            [header[k] + begin for k in range(outputs)],
            lax.min(size - begin, jnp.int32(width)),
            header[outputs + 1] if has_member else None,
            *self._rows(table, first, begin, size),
        )
        return chunk, next_at, after

    def _rows(
        self, table: Array, first: Array, begin: Array, size: Array
    ) -> tuple[SlotRows, SlotRows]:
        """Returns the rows that the external and operand slots of a part read."""
        starts, strides = table[1:, :1], table[1:, 1:]
        # Padding rows repeat the last node, as they do in records.
        numbers = begin + jnp.arange(self.common.width, dtype=jnp.int32)
        numbers = jnp.minimum(numbers, size - 1)[None, :]
        rows = take_rows(self.records, first + starts + strides * numbers)
        rows += (1 - strides) * numbers
        slots, width = rows.shape
        flat, places = rows.reshape(-1), range(0, (slots + 1) * width, width)
        node_type = self.program.types.types[self.common.type_id]
        externals = len(node_type.external_kinds)
        return (
            SlotRows(flat, places[: externals + 1], width),
            SlotRows(flat, places[externals:], width, self.common.sliced),
        )
