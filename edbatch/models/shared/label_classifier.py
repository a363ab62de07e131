"""The cell that classifies a state, the last cell of many models."""

from typing import Any

from jax import Array

import edbatch as eb


@eb.cell
def classify(params: Any, h: Array) -> Array:
    """Returns the logits of the labels.

    Args:
        params: Parameters; the entry ``classify`` has ``W``, ``[H, L]``, and ``b``,
            ``[L]``.
        h: The state, ``[H]``.

    Returns:
        The logits, ``[L]``.
    """
    return h @ params["classify"]["W"] + params["classify"]["b"]
