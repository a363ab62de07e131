"""The cell that classifies a state, which many models end with."""

from typing import Any

from jax import Array

import edbatch as eb


@eb.cell
def classify(params: Any, h: Array) -> Array:
    """Gives the logits of a label.

    Args:
        params: ``classify`` in it: ``W``, ``[H, L]``, and ``b``, ``[L]``.
        h: The state, ``[H]``.

    Returns:
        ``[L]``.
    """
    return h @ params["classify"]["W"] + params["classify"]["b"]
