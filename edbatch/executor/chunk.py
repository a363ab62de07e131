"""A chunk of nodes of one type: reading its inputs and writing its outputs."""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.rows import keep_rows, slice_rows, take_rows, write_rows
from edbatch.executor.arenas import Arenas
from edbatch.graph.node_type import NodeType, Slots
from edbatch.memory_planner.layout import ZERO_ROW
from edbatch.stream.format import SlotRows, record_format
from edbatch.stream.loop import Loop
from edbatch.target import Target


class Chunk(NamedTuple):
    """One chunk, decoded from its record.

    Attributes:
        node_type: Its type.
        target: The kind of device that runs it.
        width: Its number of rows, W; static.
        output_rows: First arena row of each output, scalars.
        size: Number of nodes, a scalar; the other rows are padding.
        member: Index of the member whose parameters it reads (`ProgramShape.own`), a
            scalar; None if its type has no family.
        externals: Pool rows of its external slots.
        operands: Arena rows of its operand slots.
    """

    node_type: NodeType
    target: Target
    width: int
    output_rows: list[Array]
    size: Array
    member: Array | None
    externals: SlotRows
    operands: SlotRows

    def is_real(self, ndim: int) -> Array:
        """Returns a mask, False for padding: ``[W, 1, ...] bool`` with `ndim` axes."""
        rows = jnp.arange(self.width, dtype=jnp.int32) < self.size
        return rows.reshape(-1, *(1,) * (ndim - 1))


def read_chunk(
    node_type: NodeType, loop: Loop, target: Target, records: Array, at: Array
) -> Chunk:
    """Reads the record of a chunk.

    Args:
        node_type: The loop's type.
        loop: The loop.
        target: The kind of device that runs it.
        records: Records of all chunks; ``[I] int32``.
        at: Where this chunk's record starts, a scalar.

    Returns:
        The chunk.
    """
    form = record_format(node_type, loop)
    record = slice_rows(records, at, form.length)
    head, rows = form.read_head(record), form.slot_rows(record)
    return Chunk(node_type, target, loop.width, *head, *rows)


def _read_groups(
    chunk: Chunk,
    arenas: Arenas,
    kinds: Sequence[int],
    groups: Sequence[Slots],
    rows: SlotRows,
) -> list[Array]:
    """Reads one array per argument: ``[W, ...]``, or ``[W, K, ...]`` if stacked."""
    smallest = chunk.target.fenced_slice
    arrays = []
    for group in groups:
        arena = arenas[kinds[group.slots[0]]]
        own = group_rows(group, rows)
        if own.ndim == 0:
            array = slice_rows(arena, own, chunk.width)
            if smallest is not None and array.size >= smallest:
                array = fence(array, own, chunk.target)
            arrays.append(array)
        else:
            arrays.append(take_rows(arena, own))
    return arrays


def group_rows(group: Slots, rows: SlotRows) -> Array:
    """Returns the rows that a group reads: ``[W]``, ``[W, K]``, or the first of W."""
    own = rows.stacked(group.slots) if group.stacked else rows.of(group.slots[0])
    return cast(Array, own)


def _read_masks(chunk: Chunk) -> list[Array]:
    """Returns the mask of each padded argument, boolean ``[width, K]``."""
    masks = []
    template = chunk.node_type.template
    for padding in template.paddings:
        if padding.kind == "operand":
            slots, rows = template.operands[padding.group].slots, chunk.operands
        else:
            slots, rows = template.externals[padding.group].slots, chunk.externals
        masks.append(rows.stacked(slots) != ZERO_ROW)
    return masks


def _repeat_last(chunk: Chunk, operands: list[Array]) -> list[Array]:
    """Repeats the last node's rows in the padding of slices, as gathers do.

    Otherwise padding rows of a slice would be rows of other nodes.
    """
    real, last = chunk.is_real(1), chunk.size - 1
    return [
        keep_rows(real, last, array)
        if group_rows(group, chunk.operands).ndim == 0
        else array
        for group, array in zip(
            chunk.node_type.template.operands, operands, strict=True
        )
    ]


def read_inputs(
    chunk: Chunk, arenas: Arenas, pools: Arenas, *, repeat: bool = False
) -> tuple[list[Array], list[Array], list[Array]]:
    """Reads the inputs of a chunk's cell.

    Args:
        chunk: The chunk.
        arenas: Values by array kind.
        pools: External inputs by array kind.
        repeat: Whether padding rows get the last node's operands; otherwise they may
            get those of other nodes.

    Returns:
        Operands, external inputs and masks, one ``[W, ...]`` array each.
    """
    node_type = chunk.node_type
    template = node_type.template
    operands = _read_groups(
        chunk,
        arenas,
        node_type.operand_kinds,
        template.operands,
        chunk.operands,
    )
    return (
        _repeat_last(chunk, operands) if repeat else operands,
        _read_groups(
            chunk,
            pools,
            node_type.external_kinds,
            template.externals,
            chunk.externals,
        ),
        _read_masks(chunk),
    )


def write_outputs(arenas: Arenas, chunk: Chunk, outputs: Sequence[Array]) -> Arenas:
    """Writes a chunk's outputs into the arenas, in place inside a loop.

    Args:
        arenas: Values by array kind.
        chunk: The chunk.
        outputs: One ``[W, ...]`` array per output.

    Returns:
        The arenas.
    """
    arenas, node_type = dict(arenas), chunk.node_type
    if set(node_type.operand_kinds) & set(node_type.output_kinds):
        outputs = fence(outputs, chunk.output_rows[0], chunk.target)
    for kind, row, rows in zip(
        node_type.output_kinds, chunk.output_rows, outputs, strict=True
    ):
        arenas[kind] = write_rows(arenas[kind], row, rows)
    return arenas


def fence(arrays: Any, row: Array, target: Target) -> Any:
    """Forces arrays to be computed before any later write.

    Without it XLA may fuse the gather of an operand with the write of an output; the
    write then cannot be in place and the whole arena is copied. `Target.fence` selects
    a barrier or a loop. The loop has zero iterations, which XLA cannot know, and costs
    one comparison.

    Args:
        arrays: A pytree of arrays.
        row: A row that the chunk writes; never the zero row.
        target: The kind of device.

    Returns:
        The same arrays.
    """
    leaves, treedef = jax.tree.flatten(arrays)
    if not leaves:
        return arrays
    if target.fence == "barrier":
        return lax.optimization_barrier(arrays)
    iterations = (row <= ZERO_ROW).astype(jnp.int32)
    fenced = lax.fori_loop(
        0, iterations, lambda _, each: [*map(jnp.zeros_like, each)], leaves
    )
    return jax.tree.unflatten(treedef, fenced)
