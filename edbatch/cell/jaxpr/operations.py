"""Reads the parameters of products, lookups, slices, broadcasts and powers."""

from typing import Any, NamedTuple

import numpy as np
from jax.lax import GatherScatterMode

from edbatch.cell.jaxpr.equation import Atom, shape_of
from edbatch.cell.jaxpr.internals import JaxprEqn
from edbatch.cell.primitives import DOT_GENERAL, DYNAMIC_SLICE, LOOKUPS, SLICE


class Dot(NamedTuple):
    """The dimensions of a product.

    Attributes:
        dims: Contracted dimensions of the left and of the right operand.
        batch_dims: Batch dimensions of the left and of the right operand.
        precision: As for `jax.lax.dot_general`.
        is_plain: Whether the product has no other settings: no sharding of its result,
            no metadata, no compute type.
    """

    dims: tuple[tuple[int, ...], tuple[int, ...]]
    batch_dims: tuple[tuple[int, ...], tuple[int, ...]]
    precision: Any
    is_plain: bool


def read_dot(eqn: Any) -> Dot | None:
    """Reads an equation as a product; None if it is not a ``dot_general``."""
    if not isinstance(eqn, JaxprEqn) or eqn.primitive.name != DOT_GENERAL:
        return None
    dims, batch_dims = eqn.params["dimension_numbers"]
    is_plain = (
        eqn.params.get("out_sharding") is None
        and eqn.ctx.compute_type is None
        and not eqn.ctx.xla_metadata
    )
    left, right = (tuple(map(int, each)) for each in dims)
    batch_left, batch_right = (tuple(map(int, each)) for each in batch_dims)
    precision = eqn.params["precision"]
    return Dot((left, right), (batch_left, batch_right), precision, is_plain)


class Lookup(NamedTuple):
    """A lookup of table rows by index.

    Attributes:
        table: The table, ``[N, ...]``.
        numbers: The row indices: a scalar, or ``[..., 1]``.
        clips: Whether an index out of bounds is clipped to the first or last row;
            otherwise it reads no row.
    """

    table: Atom
    numbers: Atom
    clips: bool


def read_lookup(eqn: JaxprEqn) -> Lookup | None:
    """Reads an equation as a lookup of whole rows, returned in the order of indices.

    Args:
        eqn: An equation.

    Returns:
        The lookup; None for other equations.
    """
    if eqn.primitive.name not in LOOKUPS:
        return None
    table, numbers = eqn.invars[:2]
    shape = shape_of(table)
    if not shape or tuple(eqn.params["slice_sizes"]) != (1, *shape[1:]):
        return None
    if eqn.primitive.name == DYNAMIC_SLICE:
        return Lookup(table, numbers, clips=True)
    dims, ndim = eqn.params["dimension_numbers"], len(shape_of(eqn.outvars[0]))
    kept = len(shape) - len(dims.collapsed_slice_dims)
    whole = (
        tuple(dims.start_index_map) == (0,)
        and not dims.operand_batching_dims
        and tuple(dims.offset_dims) == tuple(range(ndim - kept, ndim))
        and set(dims.collapsed_slice_dims) <= {0}
    )
    clips = eqn.params["mode"] == GatherScatterMode.CLIP
    return Lookup(table, numbers, clips) if whole else None


class Cut(NamedTuple):
    """A result of a slice or split: consecutive elements along one dimension."""

    dim: int
    start: int
    stop: int


def read_cuts(eqn: JaxprEqn) -> list[Cut]:
    """Reads an equation as a split, or as a slice along one dimension.

    Args:
        eqn: An equation.

    Returns:
        The range of the input that each result consists of; empty for other equations.
    """
    if eqn.primitive.name == "split":
        dim, stops = eqn.params["axis"], np.cumsum(eqn.params["sizes"]).tolist()
        starts = [0, *stops[:-1]]
        return [Cut(dim, *each) for each in zip(starts, stops, strict=True)]
    if eqn.primitive.name != SLICE or set(eqn.params["strides"] or ()) - {1}:
        return []
    limits = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True)
    shape = shape_of(eqn.invars[0])
    found = [
        Cut(dim, int(start), int(stop))
        for dim, (start, stop) in enumerate(limits)
        if (start, stop) != (0, shape[dim])
    ]
    return found if len(found) == 1 else []


def broadcast_dims(eqn: JaxprEqn) -> tuple[int, ...] | None:
    """Returns the dimension map of a broadcast; None for other equations."""
    if eqn.primitive.name != "broadcast_in_dim" or len(eqn.invars) != 1:
        return None
    return tuple(eqn.params["broadcast_dimensions"])


def reduced_axes(eqn: JaxprEqn) -> tuple[int, ...]:
    """Returns the axes over which a sum or a maximum is taken."""
    return tuple(eqn.params["axes"])


def fills_with_a_number(eqn: JaxprEqn) -> bool:
    """Returns whether a gather has a fill value other than the default, 0 or NaN."""
    fills = eqn.params["mode"] == GatherScatterMode.FILL_OR_DROP
    value = eqn.params["fill_value"]
    return fills and value not in (None, 0) and not np.isnan(value)


def exponent_of(eqn: JaxprEqn) -> int | None:
    """Returns the exponent of an integer power; None for other equations."""
    return eqn.params["y"] if eqn.primitive.name == "integer_pow" else None


def mantissa_bits(eqn: JaxprEqn) -> int | None:
    """Returns the mantissa bits of a rounding equation; None for other equations."""
    is_rounding = eqn.primitive.name == "reduce_precision"
    return eqn.params["mantissa_bits"] if is_rounding else None
