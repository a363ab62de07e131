"""Intermediate values, which a model reads while it runs."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax import lax

from edbatch.errors import CellError, EdbatchError, RecordingError, user_line
from edbatch.graph.context import context
from edbatch.graph.stand_in import is_stand_in

_NUMBERS = (int, float, complex)


def value(tree: Any) -> Any:
    """Returns values that a model has computed so far, as NumPy arrays.

    A model may call it at any call depth to look at outputs of cells: to choose the
    next action of a parser, to end a decoder, to leave a network early. It uses the
    values in ordinary Python.

    When the model runs on one instance, it gets the arrays at once. In a minibatch (a
    call of the batched function, `Batched.rollout`) the instance is suspended until the
    value is available, while all others continue; when all are waiting, the nodes that
    they have recorded run as one wave, scheduled by the policy. No gradient flows
    through the value itself, which is a constant of the path that the instance takes.

    Args:
        tree: Outputs of cells and parameters, or a pytree of them. Request several at
            once rather than one after the other.

    Returns:
        The same pytree with NumPy arrays, of the shapes and dtypes of the outputs. Do
        not write to them.

    Raises:
        RecordingError: It is called where there is no value: under ``jax.jit`` or
            ``jax.vmap``, in `Batched.record` and `Batched.plan`, which run no cell, and
            in a thread or an `asyncio` event loop that the model starts. Or a leaf of
            the pytree is neither an array nor a number.
        CellError: It is called inside a cell.

    Example:
        >>> import edbatch as eb
        >>> import jax.numpy as jnp
        >>> @eb.cell
        ... def halve(x):
        ...     return x / 2
        >>> def steps(params, x):
        ...     count = 0
        ...     while eb.value(x) > 1:
        ...         x, count = halve(x), count + 1
        ...     return x, count
        >>> x, count = steps(None, jnp.float32(6))
        >>> x.item(), count
        (0.75, 3)
    """
    if context.recorder is not None:
        return context.recorder.value(tree)
    if context.inside:
        raise _without_value(CellError, "inside a cell")
    if context.values is not None:
        return context.values.next(tree)
    return jax.tree.map(as_known, tree)


def as_known(leaf: Any) -> np.ndarray:
    """Returns an array that is already computed, as a NumPy array.

    Args:
        leaf: A JAX or NumPy array, or a number.

    Returns:
        Its value.

    Raises:
        RecordingError: It has no value, as under ``jax.jit``, or is not an array.
    """
    if is_stand_in(leaf):
        raise RecordingError(
            f"eb.value was called ({user_line()}) outside of the recording that"
            f" {leaf!r} belongs to; usually in a thread that the model starts,"
            " or once the batched call has returned; call it in the model"
            " itself, in its own thread"
        )
    # Under jax.grad the value is known, and has no derivative: it is a constant.
    known = lax.stop_gradient(leaf) if isinstance(leaf, jax.core.Tracer) else leaf
    if isinstance(known, jax.core.Tracer):
        where = "under jax.jit, jax.vmap or another trace"
        raise _without_value(RecordingError, where)
    if not (hasattr(known, "__array__") or isinstance(known, _NUMBERS)):
        raise RecordingError(
            "eb.value takes outputs of cells, parameters, arrays and numbers, and"
            f" pytrees of them, but received a {type(known).__name__} ({user_line()})"
            + _in_place_of(known)
        )
    return np.asarray(known)


def _in_place_of(value: Any) -> str:
    """Suggests what to pass instead of a value that is not an array."""
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return "; convert it to a list"
    return "; leave it out"


def _without_value(error: type[EdbatchError], where: str) -> EdbatchError:
    return error(
        f"eb.value returns what is computed already, but it was called {where}"
        f" ({user_line()}), where arrays have no values yet; call it in the model,"
        " between cells, on what cells return, and run the model itself on one instance"
    )
