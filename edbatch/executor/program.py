"""The one compiled program of a model: it reads a minibatch's schedule as data.

The program holds one loop per type, width and set of operands that are read as slices
(see `loop`). A step passes over all of them; how
often each one turns, possibly not at all, comes from the plan (see `stream`). Loops
update the arenas in place, where ``lax.cond`` or ``lax.switch`` around them would copy
them; a test reads the compiled HLO for such copies.

With many loops those that do not turn would cost more than those that do, so loops
are enclosed in groups: a loop of zero or one turn around each group skips it at once.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.backward import TapedCell, taped_cell
from edbatch.cell.program import CellProgram, Packed, cell_program, run_lanes
from edbatch.executor.chunk import (
    Arenas,
    Chunk,
    read_chunk,
    read_groups,
    read_masks,
    write_outputs,
)
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable
from edbatch.stream.format import record_format
from edbatch.stream.loop import Loop

_UNGROUPED = 8  # up to so many loops, a group's own loop costs more than it saves

Carry = tuple[Array, Arenas]  # place in the stream, arenas


@dataclass(frozen=True)
class ProgramShape:
    """What a program is compiled for, beside the shapes of a plan's arrays.

    Attributes:
        types: The model's types.
        loops: The loops, in their order.
        arena_rows: (array kind, rows) of each arena.
        type_rows: (type id, rows that its chunks compute at most).
        packing: Whether operations inside cells are packed.
        reuses_rows: Whether values are overwritten once they are not needed any more;
            then there is no gradient.
        remat: Whether the backward pass computes again what products gave.
        with_keys: Whether cells that take keys get them, or run with their default.
    """

    types: TypeTable
    loops: tuple[Loop, ...]
    arena_rows: tuple[tuple[int, int], ...]
    type_rows: tuple[tuple[int, int], ...] = ()
    packing: bool = False
    reuses_rows: bool = False
    remat: bool = False
    with_keys: bool = True

    def __hash__(self) -> int:
        """Returns the hash, which every call of a compiled program asks for."""
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the hash, which is another one in another process."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def _hash(self) -> int:
        return hash((self.types, self.loops, self.arena_rows, self.type_rows))

    def cell(self, type_id: int) -> CellProgram:
        """Returns the cell of a type."""
        return cell_program(self._type(type_id), self.types, self.packing)

    def taped_cell(self, type_id: int) -> TapedCell:
        """Returns the cell of a type, for the backward pass."""
        return taped_cell(self._type(type_id), self.types, self.packing, self.remat)

    def _type(self, type_id: int) -> NodeType:
        node_type = self.types.types[type_id]
        return node_type if self.with_keys else node_type.without_rng()

    def pack(self, params: Any) -> dict[int, Packed]:
        """Computes what cells make of parameters alone, by type."""
        return {type_id: cell.pack(params) for type_id, cell in self.cells().items()}

    def cells(self) -> dict[int, CellProgram]:
        """Returns the cells that run, by type."""
        used = sorted({loop.type_id for loop in self.loops})
        return {type_id: self.cell(type_id) for type_id in used}


def execute(
    shape: ProgramShape,
    params: Any,
    pools: Arenas,
    stream: Array,
    trips: Array,
    num_steps: Array,
) -> Arenas:
    """Runs a minibatch.

    Args:
        shape: The program.
        params: The model's parameters.
        pools: External inputs by array kind, ``[rows, ...]``; row 0 is zero.
        stream: Records of all chunks; ``[I] int32``.
        trips: Turns of each loop in each step; ``[S, P] int32``.
        num_steps: How many steps there are; the rest of ``trips`` is padding.

    Returns:
        The arenas, by array kind. Rows that no node wrote hold arbitrary values.
    """
    return execute_packed(shape, shape.pack(params), pools, stream, trips, num_steps)


def execute_packed(
    shape: ProgramShape,
    packed: dict[int, Packed],
    pools: Arenas,
    stream: Array,
    trips: Array,
    num_steps: Array,
) -> Arenas:
    """As `execute`, from what `ProgramShape.pack` made of the parameters."""

    def body_of(loop: Loop) -> Callable[[Any, Carry], Carry]:
        node_type = shape.types.types[loop.type_id]
        cell = shape.cell(loop.type_id)
        length = record_format(node_type, loop).length

        def body(_: Any, carry: Carry) -> Carry:
            at, arenas = carry
            chunk = read_chunk(node_type, loop, stream, at)
            inputs = read_inputs(chunk, arenas, pools)
            own = packed[loop.type_id]
            outputs = run_lanes(cell, loop.width, own, *inputs)
            return at + length, write_outputs(arenas, node_type, chunk, outputs)

        return body

    start = (jnp.int32(0), new_arenas(shape))
    bodies = [body_of(loop) for loop in shape.loops]

    def step(s: Array, carry: Carry) -> Carry:
        return run_loops(bodies, trips[s], carry)

    return lax.fori_loop(0, num_steps, step, start)[1]


def read_inputs(
    chunk: Chunk, arenas: Arenas, pools: Arenas
) -> tuple[list[Array], list[Array], list[Array]]:
    """Reads a chunk's operands, external inputs and masks."""
    node_type = chunk.node_type
    template = node_type.template
    return (
        read_groups(
            arenas,
            node_type.operand_kinds,
            template.operands,
            chunk.operands,
            chunk.width,
        ),
        read_groups(
            pools,
            node_type.external_kinds,
            template.externals,
            chunk.externals,
            chunk.width,
        ),
        read_masks(node_type, chunk),
    )


def new_arenas(shape: ProgramShape) -> Arenas:
    """Allocates arenas without clearing them, but for the zero row."""
    arenas = {}
    for kind, rows in shape.arena_rows:
        aval = shape.types.avals[kind]
        arena = lax.empty((rows, *aval.shape), aval.dtype)
        arenas[kind] = arena.at[0].set(jnp.zeros(aval.shape, aval.dtype))
    return arenas


def run_loops(
    bodies: Sequence[Callable[[Any, Any], Any]],
    trips: Array,
    carry: Any,
    *,
    reverse: bool = False,
) -> Any:
    """Turns each loop as often as asked, in order.

    Args:
        bodies: One body per loop.
        trips: Turns of each; ``[P] int32``.
        carry: Initial carry.
        reverse: Take the loops from the last to the first.

    Returns:
        The final carry.
    """

    def run_range(first: int, last: int, carry: Any) -> Any:
        order = range(first, last)
        for p in reversed(order) if reverse else order:
            carry = lax.fori_loop(0, trips[p], bodies[p], carry)
        return carry

    if len(bodies) <= _UNGROUPED:
        return run_range(0, len(bodies), carry)
    size = math.isqrt(len(bodies))
    starts = list(range(0, len(bodies), size))
    for first in reversed(starts) if reverse else starts:
        last = min(first + size, len(bodies))
        busy = (trips[first:last].max() > 0).astype(jnp.int32)
        carry = lax.fori_loop(
            0,
            busy,
            lambda _, inner, a=first, b=last: run_range(a, b, inner),
            carry,
        )
    return carry


def compiled_copies(
    compiled: jax.stages.Compiled, shape: ProgramShape, *, entry: bool = True
) -> list[str]:
    """Lists the copies of whole arenas in compiled HLO.

    Args:
        compiled: A compiled function that runs the program.
        shape: The program.
        entry: Also list copies that happen once per call, outside all loops.

    Returns:
        The offending lines; empty for a good program.
    """
    sizes = [
        f"[{','.join(map(str, (rows, *shape.types.avals[kind].shape)))}]"
        for kind, rows in shape.arena_rows
    ]
    found = []
    in_entry = False
    for line in (compiled.as_text() or "").splitlines():
        if line and not line[0].isspace():
            in_entry = line.startswith("ENTRY")
        result, is_copy, _ = line.partition(" copy(")
        if is_copy and (entry or not in_entry) and any(x in result for x in sizes):
            found.append(line.strip())
    return found
