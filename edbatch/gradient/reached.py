"""Finds the rows of a chunk that a cotangent reaches; only they contribute.

See `backward` for the reason. `TapedCell.output_groups` divides the outputs.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.cell.backward import TapedCell
from edbatch.cell.rows import choose_rows, first_true, keep_rows, slice_rows
from edbatch.cell.tapes import Tapes
from edbatch.executor.arenas import Arenas
from edbatch.executor.chunk import Chunk
from edbatch.executor.program import ProgramShape
from edbatch.gradient.cotangents import mark_groups

Results = list[tuple[int, Array, Array]]  # kind, rows and cotangent of each


def has_poles(shape: ProgramShape, cells: dict[int, TapedCell]) -> bool:
    """Whether the zero cotangent of an unread output may meet an infinite derivative.

    Args:
        shape: The program.
        cells: Its cells, by type.

    Returns:
        Whether the rows that a cotangent has reached must be distinguished.
    """
    return any(
        cell.has_poles(range(len(shape.types.types[type_id].output_kinds)))
        for type_id, cell in cells.items()
    )


def first_reached(arenas_bar: Arenas, results: Results) -> Arenas:
    """Marks the rows that the cotangents of results reach.

    Args:
        arenas_bar: The cotangents of values.
        results: The results that have a cotangent.

    Returns:
        Marks, ``[rows] bool`` by array kind.
    """
    reached = {kind: jnp.zeros(len(bar), jnp.bool) for kind, bar in arenas_bar.items()}
    for kind, rows, _ in results:
        reached[kind] = reached[kind].at[rows].set(True, mode="promise_in_bounds")
    return reached


class Group(NamedTuple):
    """Outputs of a chunk that are differentiated together.

    Attributes:
        outputs: Their positions.
        bars: Their cotangents, ``[W, ...]`` each.
        live: Rows with a node that one of these cotangents has reached; other rows
            contribute nothing. ``[W] bool``.
    """

    outputs: tuple[int, ...]
    bars: list[Array]
    live: Array


def divide_outputs(
    cell: TapedCell,
    chunk: Chunk,
    arenas: Arenas,
    arenas_bar: Arenas,
    reached: Arenas,
) -> list[Group]:
    """Divides a chunk's outputs into groups that are differentiated together.

    Args:
        cell: The chunk's cell.
        chunk: The chunk.
        arenas: The values.
        arenas_bar: The cotangents of the values.
        reached: Marks of the rows that a cotangent has reached; empty if all rows are
            treated as reached.

    Returns:
        The groups, at least one.
    """
    kinds, real = chunk.node_type.output_kinds, chunk.is_real(1)
    read = [k for k, kind in enumerate(kinds) if kind in arenas_bar]

    def rows_of(arenas: Arenas, k: int) -> Array:
        return slice_rows(arenas[kinds[k]], chunk.output_rows[k], chunk.width)

    def group(outputs: tuple[int, ...]) -> Group:
        live = real
        if reached:
            marks = [rows_of(reached, k) for k in outputs]
            live &= reduce(jnp.logical_or, marks, jnp.zeros_like(real))
        bars = [rows_of(arenas_bar, k).astype(arenas[kinds[k]].dtype) for k in outputs]
        return Group(outputs, bars, live)

    if not reached:
        return [group(tuple(read))]
    return [group(each) for each in cell.output_groups(read) or [()]]


def differentiate_groups(
    differentiate: Callable[[Group, Any, Any], tuple[Any, Tapes]],
    cell: TapedCell,
    groups: list[Group],
    inputs: Any,
    known_outputs: Any,
) -> tuple[Any, Tapes, Array]:
    """Differentiates groups of outputs one by one, each only on its live rows.

    All other rows get the inputs of a live row, so that they have its derivatives. If
    no row is live, all cotangents are zero. Inputs of a site are kept only in rows in
    which a cotangent reaches the site. Elsewhere they may be infinite and would be
    multiplied by the cotangents on the site's tape, which are zero there.

    Args:
        differentiate: Finds the cotangents of one group, and the inputs of sites.
        cell: The cell.
        groups: The groups.
        inputs: The cell's inputs; a pytree of ``[W, ...]`` arrays.
        known_outputs: The outputs of its sites, likewise.

    Returns:
        The cotangents, the inputs of sites, and which rows are live in any group.
    """
    bars: list[Any] = []
    site_inputs: Tapes | None = None
    live = jnp.zeros_like(groups[0].live)
    for each in groups:
        own = keep_rows(each.live, first_true(each.live), (inputs, known_outputs))
        (direct_bar, *more), read = differentiate(each, *own)
        is_any = each.live.any()
        bars.append(([jnp.where(is_any, bar, 0) for bar in direct_bar], *more))
        linked = cell.linked_sites(each.outputs)
        if site_inputs is None:
            site_inputs = jax.tree.map(jnp.zeros_like, read)
        choose = partial(jax.tree.map, partial(choose_rows, each.live))
        site_inputs = [
            choose(new, old) if is_linked else old
            for is_linked, new, old in zip(linked, read, site_inputs, strict=True)
        ]
        live |= each.live
    assert site_inputs is not None, "there is a group"
    return reduce(partial(jax.tree.map, jnp.add), bars), site_inputs, live


def mark_reached(cell: TapedCell, chunk: Chunk, reached: Arenas) -> Arenas:
    """Marks the rows of operands that cotangents of a chunk's outputs reach.

    Args:
        cell: The chunk's cell.
        chunk: The chunk.
        reached: Marks, ``[rows] bool`` by array kind.

    Returns:
        The updated marks.
    """
    node_type, before = chunk.node_type, reached
    for k, kind in enumerate(node_type.output_kinds):
        if kind in before:
            marks = slice_rows(before[kind], chunk.output_rows[k], chunk.width)
            reached = mark_groups(
                reached,
                node_type.operand_kinds,
                node_type.template.operands,
                chunk.operands,
                marks & chunk.is_real(1),
                cell.linked_operands(k),
            )
    return reached
