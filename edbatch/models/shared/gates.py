"""Gates written as in papers: one matrix per gate and input.

Packing merges their products (see `edbatch.cell`), so models need not concatenate the
matrices themselves.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid

from edbatch.errors import DataError

State = tuple[Array, Array]  # h and c, ``[H]`` each


def from_input(params: Any, names: str, x: Array) -> list[Array]:
    """Computes gates of an input without a state, before the activation function.

    Args:
        params: For each gate ``W``, ``[X, H]``, and ``b``, ``[H]``.
        names: The names of the gates, one letter each.
        x: The input, ``[X]``.

    Returns:
        ``x W + b`` for each gate, ``[H]``.
    """
    return [x @ params[name]["W"] + params[name]["b"] for name in names]


def gates(params: Any, names: str, x: Array, h: Array) -> list[Array]:
    """Computes gates of an input and a state, before the activation function.

    Args:
        params: For each gate ``W``, ``[X, H]``, ``U``, ``[H, H]``, and ``b``, ``[H]``.
        names: The names of the gates, one letter each.
        x: The input, ``[X]``.
        h: The state, ``[H]``.

    Returns:
        ``x W + h U + b`` for each gate, ``[H]``.
    """
    return [
        x @ params[name]["W"] + h @ params[name]["U"] + params[name]["b"]
        for name in names
    ]


def lstm_step(params: Any, x: Array, state: State) -> State:
    """Computes the next state of an LSTM.

    Args:
        params: The gates ``i``, ``f``, ``o`` and ``u``, as for `gates`.
        x: The input, ``[X]``.
        state: The previous state, ``h`` and ``c``.

    Returns:
        The next state, ``h`` and ``c``.
    """
    h, c = state
    i, f, o, u = gates(params, "ifou", x, h)
    c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(u)
    return sigmoid(o) * jnp.tanh(c), c


def linked(gate: Any, x: Array, states: Array) -> Array:
    """Computes one gate for each of several states that share an input.

    Args:
        gate: ``W``, ``[X, H]``, ``U``, ``[H, H]``, and ``b``, ``[H]``.
        x: The input, ``[X]``.
        states: The states, ``[K, H]``.

    Returns:
        ``x W + b + h_k U`` for each state, ``[K, H]``, before the activation function.
    """
    return (x @ gate["W"] + gate["b"])[None] + states @ gate["U"]


def from_children(gate: Any, states: Sequence[Array]) -> Array:
    """Computes one gate from the states of a node's children, before the activation.

    Args:
        gate: ``U``, a list with a matrix ``[H, H]`` per child position, and ``b``,
            ``[H]``.
        states: The states, ``[H]`` each; at most one per child position.

    Returns:
        The sum of ``h_k U_k`` over the children, plus ``b``; ``[H]``.

    Raises:
        DataError: There are more states than child positions.
    """
    check_children(len(states), len(gate["U"]))
    return sum((h @ U for h, U in zip(states, gate["U"], strict=False)), gate["b"])


def check_children(count: int, places: int) -> None:
    """Checks that the parameters have a position for each child of a node.

    Args:
        count: Number of children of the node.
        places: Number of child positions in the parameters.

    Raises:
        DataError: There are more children than positions.
    """
    if count > places:
        raise DataError(
            f"the parameters are for nodes of at most {places} children but one has"
            f" {count}; binarize the tree (edbatch.data.binarize), or make the workload"
            f" and its parameters with arity={count}"
        )
