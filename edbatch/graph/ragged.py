"""Lists in a model's output, whose lengths may differ, as padded arrays."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, export

from edbatch.errors import PlanError


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ragged:
    """The lists that a model returned for ``B`` instances, concatenated.

    Every Python list in a model's output is returned in this form, in all minibatches;
    a tuple has a fixed length and is returned as a tuple. ``V`` is the total number of
    elements rounded up to a bucket; elements beyond the sum of ``lengths`` are padding.

    Attributes:
        values: The elements: a pytree of ``[V, ...]`` arrays; an empty tuple if all
            lists are empty and the structure of their elements is unknown.
        segment_ids: Instance of each element; B for padding; ``[V] int32``.
        lengths: Length of each instance's list; ``[B] int32``.

    Example:
        >>> import numpy as np
        >>> ragged = Ragged(
        ...     values=np.array([1.0, 2.0, 3.0, 0.0]),
        ...     segment_ids=np.array([0, 0, 1, 2]),
        ...     lengths=np.array([2, 1]),
        ... )
        >>> [each.tolist() for each in ragged.to_list()]
        [[1.0, 2.0], [3.0]]
    """

    values: Any
    segment_ids: Array
    lengths: Array

    def __repr__(self) -> str:
        """Summary in one line."""
        counts: Any = [
            getattr(each, "shape", ())[-1:] for each in (self.lengths, self.segment_ids)
        ]
        if not all(counts):  # results of `jax.tree.map` in place of the arrays
            return (
                f"Ragged(values={self.values!r}, segment_ids={self.segment_ids!r},"
                f" lengths={self.lengths!r})"
            )
        [lists], [elements] = counts
        return f"<Ragged: {lists} lists, {elements} elements with padding>"

    @property
    def mask(self) -> Array:
        """True for elements, False for padding; ``[V] bool``."""
        return self.segment_ids < self.lengths.shape[0]

    def to_list(self) -> list[Any]:
        """Returns one pytree of NumPy arrays per instance, without padding."""
        ends = np.cumsum(np.asarray(self.lengths))
        starts = ends - np.asarray(self.lengths)
        nested = jax.tree.map(
            lambda each: (
                each.to_list() if isinstance(each, Ragged) else np.asarray(each)
            ),
            self.values,
            is_leaf=_is_ragged,
        )
        return [
            jax.tree.map(
                lambda each, a=a, b=b: each[a:b],
                nested,
                is_leaf=lambda each: isinstance(each, list),
            )
            for a, b in zip(starts, ends, strict=True)
        ]

    def to_padded(self, length: int) -> tuple[Any, Array]:
        """Returns the lists as padded rows.

        Args:
            length: L; static under jit. Longer lists are truncated.

        Returns:
            The pytree with ``[B, L, ...]`` arrays, zero where there is no element, and
            the boolean mask ``[B, L]``.

        Raises:
            PlanError: The elements themselves contain lists.
        """
        elements = jax.tree.leaves(self.values, is_leaf=_is_ragged)
        if any(map(_is_ragged, elements)):
            raise PlanError(
                "to_padded pads lists of arrays, but here the elements hold lists"
                " themselves; pad these first, as in"
                " dataclasses.replace(ragged, values=ragged.values.to_padded(L)[0]), or"
                " take to_list()"
            )
        dtype = self.lengths.dtype
        starts = jnp.cumsum(self.lengths, dtype=dtype) - self.lengths
        number = jnp.arange(length, dtype=dtype)[None]
        place = starts[:, None] + number
        mask = number < self.lengths[:, None]

        def pad(values: Array) -> Array:
            rows = jnp.asarray(values)[jnp.where(mask, place, 0)]
            wide = mask.reshape(mask.shape + (1,) * (rows.ndim - 2))
            return jnp.where(wide, rows, jnp.zeros((), rows.dtype))

        return jax.tree.map(pad, self.values), mask


export.register_pytree_node_serialization(
    Ragged,
    serialized_name="edbatch.Ragged",
    serialize_auxdata=lambda _: b"",  # it contains only arrays
    deserialize_auxdata=lambda _: (),
)


def _is_ragged(value: Any) -> bool:
    return isinstance(value, Ragged)
