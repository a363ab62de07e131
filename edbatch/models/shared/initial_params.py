"""Random parameters that keep signals near unit size, in float32."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

Sample = Callable[[Array, int, int], dict[str, Any]]


def embedding(key: Array, rows: int, size: int) -> Array:
    """Samples an embedding whose entries have unit variance.

    Args:
        key: A `jax.random` key.
        rows: Number of vectors.
        size: Length of a vector.

    Returns:
        ``[rows, size] float32``.
    """
    return jax.random.normal(key, (rows, size), jnp.float32)


def affine(key: Array, inputs: int, outputs: int) -> dict[str, Any]:
    """Samples ``W`` and ``b`` such that ``x @ W + b`` has unit variance if ``x`` has.

    Args:
        key: A `jax.random` key.
        inputs: Length of ``x``.
        outputs: Length of the result.

    Returns:
        ``W``, ``[inputs, outputs] float32``, and ``b``, zero, ``[outputs] float32``.

    Example:
        >>> {name: each.shape for name, each in affine(jax.random.key(0), 3, 2).items()}
        {'W': (3, 2), 'b': (2,)}
    """
    weights = jax.random.normal(key, (inputs, outputs), jnp.float32)
    return {"W": weights * inputs**-0.5, "b": jnp.zeros(outputs, jnp.float32)}


def matrices(key: Array, count: int, hidden: int) -> list[Array]:
    """Samples one matrix per state, for a sum of the products of states and matrices.

    Args:
        key: A `jax.random` key.
        count: Number of states.
        hidden: Length of a state, H.

    Returns:
        ``count`` arrays ``[H, H] float32``; the sum of the products has unit variance
        if the states have.
    """
    scale = (count * hidden) ** -0.5
    return [
        scale * jax.random.normal(each, (hidden, hidden), jnp.float32)
        for each in jax.random.split(key, count)
    ]


def gate(key: Array, inputs: int, hidden: int) -> dict[str, Any]:
    """Samples a gate ``x @ W + h @ U + b`` of unit variance if ``x`` and ``h`` have it.

    Args:
        key: A `jax.random` key.
        inputs: Length of the input ``x``, X.
        hidden: Length of the state ``h``, H.

    Returns:
        ``W``, ``[X, H]``, ``U``, ``[H, H]``, and ``b``, zero, ``[H]``; all float32.

    Example:
        >>> {name: each.shape for name, each in gate(jax.random.key(0), 3, 2).items()}
        {'W': (3, 2), 'U': (2, 2), 'b': (2,)}
    """
    both = affine(key, inputs + hidden, hidden)
    return {"W": both["W"][:inputs], "U": both["W"][inputs:], "b": both["b"]}


def gates(
    key: Array, names: str, inputs: int, hidden: int, sample: Sample = gate
) -> dict[str, dict[str, Any]]:
    """Samples several gates.

    Args:
        key: A `jax.random` key.
        names: The names of the gates, one letter each.
        inputs: Length of the input, X.
        hidden: Length of the state, H.
        sample: The sampler of one gate: `gate`, or `affine` for gates without a state.

    Returns:
        The parameters of each gate, by name.
    """
    keys = jax.random.split(key, len(names))
    return {
        name: sample(own, inputs, hidden) for name, own in zip(names, keys, strict=True)
    }


def child_gate(key: Array, arity: int, hidden: int) -> dict[str, Any]:
    """Samples a gate that reads the states of a node's children.

    Args:
        key: A `jax.random` key.
        arity: Largest number of children, N.
        hidden: Length of a state, H.

    Returns:
        ``U``, a list of ``N`` arrays ``[H, H]``, and ``b``, zero, ``[H]``; float32.
    """
    return {
        "U": matrices(key, arity, hidden),
        "b": jnp.zeros(hidden, jnp.float32),
    }
