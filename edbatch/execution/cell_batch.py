"""A chunk of nodes of one type: where its rows come from and go to."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.execution.loop import Loop
from edbatch.graph.node_type import NodeType, Slots
from edbatch.memory_planner.layout import ZERO_ROW

Arenas = dict[int, Array]  # array kind -> [rows, ...]

# XLA's CPU backend reads a slice where it is used, element by element, and then does
# not vectorise what uses it. From so many elements on, reading it first is faster: a
# lattice LSTM of 128, whose slices have up to 16,384 elements, takes 18 in place of
# 23 ms; below, the fence would cost more.
_FENCED = 2048


class Chunk:
    """One chunk's record, taken apart.

    Attributes:
        node_type: Its type.
        width: Its lanes, W.
        output_rows: First row of each output, scalars.
        size: Lanes that hold a node; the rest is padding. A scalar.
        externals: Rows of pools per external slot, ``[W]`` each.
        operands: Rows of arenas per operand slot: ``[W]``, or a scalar, the first row,
            where the loop reads a slice.
    """

    def __init__(self, node_type: NodeType, loop: Loop, record: Array) -> None:
        outputs = len(node_type.output_kinds)
        self.node_type = node_type
        self.width = loop.width
        self.output_rows = [record[k] for k in range(outputs)]
        self.size = record[outputs]
        at = outputs + 1
        self.externals = []
        for _ in node_type.external_kinds:
            self.externals.append(record[at : at + loop.width])
            at += loop.width
        self.operands = []
        for slot in range(len(node_type.operand_kinds)):
            if slot in loop.sliced:
                self.operands.append(record[at])
                at += 1
            else:
                self.operands.append(record[at : at + loop.width])
                at += loop.width

    def is_real(self, ndim: int) -> Array:
        """Tells nodes from padding: ``[W, 1, ...] bool``, of a number of axes."""
        lanes = jnp.arange(self.width) < self.size
        return lanes.reshape(-1, *(1,) * (ndim - 1))


def record_length(node_type: NodeType, loop: Loop) -> int:
    """Returns the length of a chunk's record in the stream."""
    gathered = len(node_type.external_kinds) + len(node_type.operand_kinds)
    gathered -= len(loop.sliced)
    head = len(node_type.output_kinds) + 1
    return head + loop.width * gathered + len(loop.sliced)


def take_rows(arena: Array, rows: Array) -> Array:
    """Gathers rows that are known to exist; ``rows.shape + arena.shape[1:]``."""
    # Without the promise that none is negative, JAX tests every row for it.
    return arena.at[rows].get(mode="promise_in_bounds", wrap_negative_indices=False)


def slice_rows(arena: Array, first: Array, width: int) -> Array:
    """Reads consecutive rows that are known to exist; ``[width, ...]``."""
    start = (first,) + (jnp.int32(0),) * (arena.ndim - 1)
    shape = (width, *arena.shape[1:])
    return lax.dynamic_slice(arena, start, shape, allow_negative_indices=False)


def keep_rows(kept: Array, other: Array, arrays: Any) -> Any:
    """Puts one row in place of all that are not kept.

    Args:
        kept: Which rows are kept; ``[W] bool``.
        other: Which row stands in place of the others.
        arrays: A pytree of ``[W, ...]`` arrays.

    Returns:
        Arrays of the same shapes.
    """

    def keep(array: Array) -> Array:
        return choose_rows(kept, array, slice_rows(array, other, 1))

    return jax.tree.map(keep, arrays)


def zero_unless(kept: Array, arrays: Any) -> Any:
    """Puts zeros in place of all rows that are not kept.

    Args:
        kept: Which rows are kept; ``[W] bool``.
        arrays: A pytree of ``[W, ...]`` arrays.

    Returns:
        Arrays of the same shapes; those without a cotangent (float0) as they are.
    """

    def clear(array: Any) -> Any:
        if array.dtype == jax.dtypes.float0:
            return array
        return choose_rows(kept, array, jnp.zeros_like(array))

    return jax.tree.map(clear, arrays)


def choose_rows(chosen: Array, array: Array, other: Array) -> Array:
    """Takes rows of one array, and of another one where they are not chosen.

    Args:
        chosen: Which rows to take of the first; ``[W] bool``.
        array: The first, ``[W, ...]``.
        other: The second, ``[W, ...]`` or ``[1, ...]``.

    Returns:
        ``[W, ...]``.
    """
    return jnp.where(chosen.reshape(-1, *(1,) * (array.ndim - 1)), array, other)


def write_rows(arena: Array, first: Array, rows: Array) -> Array:
    """Writes consecutive rows that are known to exist; in place inside a loop."""
    start = (first,) + (jnp.int32(0),) * (arena.ndim - 1)
    return lax.dynamic_update_slice(arena, rows, start, allow_negative_indices=False)


def read_groups(
    arenas: Arenas,
    kinds: Sequence[int],
    groups: Sequence[Slots],
    rows: Sequence[Array],
    width: int,
) -> list[Array]:
    """Reads the arrays that a cell's arguments consist of.

    Args:
        arenas: Arenas, or pools.
        kinds: Array kind per slot.
        groups: Slots per argument.
        rows: Rows per slot: ``[width]``, or the first of consecutive ones.
        width: Number of lanes.

    Returns:
        One array per group: ``[width, ...]``, or ``[width, K, ...]`` if stacked.
    """
    arrays = []
    for group in groups:
        arena = arenas[kinds[group.slots[0]]]
        own = group_rows(group, rows)
        if own.ndim == 0:
            array = slice_rows(arena, own, width)
            arrays.append(fence([array], own)[0] if array.size >= _FENCED else array)
        else:
            arrays.append(take_rows(arena, own))
    return arrays


def group_rows(group: Slots, rows: Sequence[Array]) -> Array:
    """Returns the rows that a group reads: ``[W]``, ``[W, K]``, or just the first."""
    if group.stacked:
        return jnp.stack([rows[slot] for slot in group.slots], axis=-1)
    return rows[group.slots[0]]


def read_masks(node_type: NodeType, chunk: Chunk) -> list[Array]:
    """Returns the mask of each padded argument, boolean ``[width, K]``."""
    masks = []
    for padding in node_type.template.paddings:
        template = node_type.template
        if padding.kind == "operand":
            slots, rows = template.operands[padding.group].slots, chunk.operands
        else:
            slots, rows = template.externals[padding.group].slots, chunk.externals
        masks.append(jnp.stack([rows[slot] for slot in slots], axis=-1) != ZERO_ROW)
    return masks


def write_outputs(
    arenas: Arenas, node_type: NodeType, chunk: Chunk, outputs: Sequence[Array]
) -> Arenas:
    """Writes a chunk's outputs into the arenas, in place inside a loop."""
    arenas = dict(arenas)
    if set(node_type.operand_kinds) & set(node_type.output_kinds):
        outputs = fence(outputs, chunk.output_rows[0])
    for kind, row, rows in zip(
        node_type.output_kinds, chunk.output_rows, outputs, strict=True
    ):
        arenas[kind] = write_rows(arenas[kind], row, rows)
    return arenas


def fence(arrays: Sequence[Array], row: Array) -> Sequence[Array]:
    """Has arrays computed before anything that is written later.

    Else XLA may fuse the gather of an operand with the write of an output; the write
    then cannot be in place and the whole arena is copied. On CPUs XLA drops
    optimization barriers before it fuses, but it fuses nothing across a loop: this one
    never turns, which XLA cannot know, and costs one comparison.

    Args:
        arrays: The arrays.
        row: A row that the chunk writes; never the zero row.

    Returns:
        The arrays.
    """

    def loop(row: Array, *arrays: Array) -> tuple[Array, ...]:
        turns = (row <= ZERO_ROW).astype(jnp.int32)
        return lax.fori_loop(
            0, turns, lambda _, each: tuple(map(jnp.zeros_like, each)), arrays
        )

    def barrier(row: Array, *arrays: Array) -> tuple[Array, ...]:
        return lax.optimization_barrier(arrays)

    return lax.platform_dependent(row, *arrays, cpu=loop, default=barrier)
