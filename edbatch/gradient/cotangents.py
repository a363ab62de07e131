"""Adds a chunk's cotangents to the rows that it read, and marks the rows reached.

Integers have no cotangents; placeholders stand in for them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from edbatch.cell.rows import add_rows, mark_rows
from edbatch.executor.arenas import Arenas
from edbatch.executor.chunk import group_rows
from edbatch.graph.node_type import Slots
from edbatch.stream.format import SlotRows


def add_groups(
    arenas_bar: Arenas,
    kinds: tuple[int, ...],
    groups: tuple[Slots, ...],
    rows: SlotRows,
    bars: list[Any],
) -> Arenas:
    """Adds cotangents to the rows from which each group of slots was read."""
    arenas_bar = dict(arenas_bar)
    for group, bar in zip(groups, bars, strict=True):
        kind = kinds[group.slots[0]]
        if bar is None:
            continue
        where = group_rows(group, rows)
        arenas_bar[kind] = add_rows(arenas_bar[kind], where, bar)
    return arenas_bar


def mark_groups(
    reached: Arenas,
    kinds: tuple[int, ...],
    groups: tuple[Slots, ...],
    rows: SlotRows,
    live: Array,
    linked: Sequence[bool],
) -> Arenas:
    """Marks the rows from which groups of slots were read.

    Args:
        reached: Marks, ``[rows] bool`` by array kind.
        kinds: Array kind per slot.
        groups: Slots per argument.
        rows: Rows per slot.
        live: Which batch rows mark the rows that they read; ``[W] bool``.
        linked: Which groups are marked.

    Returns:
        The updated marks.
    """
    reached = dict(reached)
    for group, is_linked in zip(groups, linked, strict=True):
        kind = kinds[group.slots[0]]
        if not is_linked or kind not in reached:
            continue
        where = group_rows(group, rows)
        marks = live.reshape(-1, *(1,) * max(0, where.ndim - 1))
        reached[kind] = mark_rows(reached[kind], where, marks)
    return reached


def zero_cotangent(array: Array) -> Array:
    """A zero cotangent; a scalar placeholder for integers."""
    return jnp.zeros_like(array) if is_float(array) else jnp.zeros((), jnp.float32)


def as_cotangent(bar: Array, primal: Array) -> Any:
    """Returns a cotangent in JAX's form: float0 zeros for integers."""
    return bar if is_float(primal) else np.zeros(primal.shape, jax.dtypes.float0)


def is_float(array: Any) -> bool:
    """Whether an array has a dtype with cotangents; False for None."""
    return array is not None and jnp.issubdtype(array.dtype, jnp.inexact)
