"""Splits a batched result into one result per instance."""

from typing import Any

import jax
import numpy as np

from edbatch.graph.ragged import Ragged


def split_instances(result: Any, count: int) -> list[Any]:
    """Splits a batched result into one result per instance.

    Args:
        result: The result of a batched function.
        count: Number of instances.

    Returns:
        The model's result for each instance, with NumPy arrays.
    """

    def is_ragged(node: Any) -> bool:
        return isinstance(node, Ragged)

    parts = jax.tree.map(
        lambda each: _unstack(each) if is_ragged(each) else np.asarray(each),
        result,
        is_leaf=is_ragged,
    )
    is_list = _Elements.is_instance
    return [
        jax.tree.map(
            lambda each, k=k: each.lists[k] if is_list(each) else each[k],
            parts,
            is_leaf=is_list,
        )
        for k in range(count)
    ]


class _Elements:
    """The lists of a `Ragged`, one per instance; a leaf for ``jax.tree``."""

    def __init__(self, lists: list[list[Any]]) -> None:
        self.lists = lists

    @staticmethod
    def is_instance(node: Any) -> bool:
        return isinstance(node, _Elements)


def _unstack(ragged: Ragged) -> _Elements:
    lengths = np.asarray(ragged.lengths)
    elements = split_instances(ragged.values, int(lengths.sum()))
    ends = np.cumsum(lengths)
    return _Elements(
        [elements[end - n : end] for end, n in zip(ends, lengths, strict=True)]
    )
