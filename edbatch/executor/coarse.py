"""Coarse programs: one loop body per type, so that they are compiled soon.

They run the streams of fine programs, which have a loop per type, width and set of
slices. A chunk is cut into parts of the greatest width that divides those of all loops
of its type; parts that hold padding alone are left out. Slots that not all of these
loops read as slices are gathered.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from edbatch.cell.rows import slice_rows, take_rows
from edbatch.executor.chunk import Chunk
from edbatch.executor.program import ProgramShape
from edbatch.stream.format import field_starts, record_format
from edbatch.stream.loop import Loop

_State = TypeVar("_State")
_Carry = tuple[Array, _State]  # position in the records, state


class TypeLoops(NamedTuple):
    """The loops of one type.

    Attributes:
        first: Position of the first among the program's loops.
        last: Position after the last.
        common: The loop that runs the parts of their chunks.
    """

    first: int
    last: int
    common: Loop


def type_loops(loops: Sequence[Loop]) -> list[TypeLoops]:
    """Groups the loops of a program by type.

    Args:
        loops: The loops, in their order: those of one type follow each other.

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
        body_of: Returns what a loop does with a chunk and a state, the next state.
        reverse: Whether to visit parts from the last to the first.

    Returns:
        A function of the step's trips, the position in the records and the state, which
        returns the next two.
    """
    groups = type_loops(program.loops)
    visits = [
        _visit(_Parts.of(program, group, records, reverse), body_of(group.common))
        for group in groups
    ]

    def step(trips: Array, carry: _Carry[_State]) -> _Carry[_State]:
        pairs = list(zip(groups, visits, strict=True))
        for group, visit in reversed(pairs) if reverse else pairs:
            carry = visit(trips[group.first : group.last], carry)
        return carry

    return step


def _visit(
    parts: "_Parts", body: Callable[[Chunk, _State], _State]
) -> Callable[[Array, _Carry[_State]], _Carry[_State]]:
    """Returns a loop over the parts of all chunks of one type in a step."""

    def visit(trips: Array, carry: _Carry[_State]) -> _Carry[_State]:
        at, state = carry
        ends = jnp.cumsum(trips * parts.lengths, dtype=jnp.int32)
        start = at - ends[-1] if parts.reverse else at
        ends += start
        stop = start if parts.reverse else ends[-1]

        def run(carry: Any) -> Any:
            at, done, state = carry
            chunk, at, done = parts.read(ends, at, done)
            return at, done, body(chunk, state)

        at, _, state = lax.while_loop(
            lambda carry: carry[0] != stop, run, (at, jnp.int32(0), state)
        )
        return at, state

    return visit


@dataclass(frozen=True, eq=False)
class _Parts:
    """How the chunks of one type are read part by part.

    Attributes:
        program: The program.
        common: The loop that runs the parts.
        records: Records of all chunks.
        reverse: Whether the last part comes first.
        lengths: Length of the records of each of ``n`` loops; ``[n] int32``.
        starts: Where the rows of each slot start in them; ``[n, slots] int32``.
        strides: 1 where there is a number for each row of the slot, 0 where there is
            the first one only; ``[n, slots] int32``.
    """

    program: ProgramShape
    common: Loop
    records: Array
    reverse: bool
    lengths: np.ndarray
    starts: np.ndarray
    strides: np.ndarray

    @classmethod
    def of(
        cls, program: ProgramShape, group: TypeLoops, records: Array, reverse: bool
    ) -> "_Parts":
        """Makes the tables of a type's loops."""
        node_type = program.types.types[group.common.type_id]
        loops = program.loops[group.first : group.last]
        starts = field_starts([record_format(node_type, each) for each in loops])
        has_member = node_type.family is not None
        header = len(node_type.output_kinds) + 1 + has_member
        slots = [*node_type.external_kinds, *node_type.operand_kinds]
        strides = np.ones((len(loops), len(slots)), np.int32)
        for row, loop in zip(strides, loops, strict=True):
            row[[len(node_type.external_kinds) + slot for slot in loop.sliced]] = 0
        starts = starts.astype(np.int32)
        lengths = starts[:, -1]
        return cls(
            program,
            group.common,
            records,
            reverse,
            lengths,
            starts[:, header:-1],
            strides,
        )

    def read(self, ends: Array, at: Array, done: Array) -> tuple[Chunk, Array, Array]:
        """Reads the next part.

        Args:
            ends: Where the records of each loop end in this step; ``[n] int32``.
            at: Where the chunk's record begins, or ends if parts come in reverse.
            done: Number of parts of the chunk that were visited before.

        Returns:
            The part as a chunk, and the next `at` and `done`.
        """
        node_type = self.program.types.types[self.common.type_id]
        width, outputs = self.common.width, len(node_type.output_kinds)
        loop = (at > ends if self.reverse else at >= ends).sum(dtype=jnp.int32)
        length = take_rows(jnp.asarray(self.lengths), loop)
        first = at - length if self.reverse else at
        has_member = node_type.family is not None
        header = slice_rows(self.records, first, outputs + 1 + has_member)
        size = header[outputs]
        count = (size + (width - 1)) // width
        begin = (count - 1 - done if self.reverse else done) * width
        is_last = done + 1 >= count
        chunk = Chunk(
            node_type,
            self.program.options.target,
            width,
            [header[k] + begin for k in range(outputs)],
            jnp.minimum(size - begin, width),
            header[outputs + 1] if has_member else None,
            *self._rows(loop, first, begin, size),
        )
        after = first if self.reverse else first + length
        return chunk, jnp.where(is_last, after, at), jnp.where(is_last, 0, done + 1)

    def _rows(
        self, loop: Array, first: Array, begin: Array, size: Array
    ) -> tuple[list[Array], list[Array]]:
        """Rows that each external and operand slot of a part reads."""
        starts = take_rows(jnp.asarray(self.starts), loop)[:, None]
        strides = take_rows(jnp.asarray(self.strides), loop)[:, None]
        # Padding reads what the last node does, as it does in records.
        lanes = jnp.minimum(begin + jnp.arange(self.common.width), size - 1)[None, :]
        rows = take_rows(self.records, first + starts + strides * lanes)
        rows += (1 - strides) * lanes
        node_type = self.program.types.types[self.common.type_id]
        externals = len(node_type.external_kinds)
        return [rows[k] for k in range(externals)], [
            rows[externals + slot][0]
            if slot in self.common.sliced
            else rows[externals + slot]
            for slot in range(len(node_type.operand_kinds))
        ]
