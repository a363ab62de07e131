"""Whether the caller is being traced, and by which transformations."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from edbatch.cell.jaxpr.internals import get_opaque_trace_state

with jax.ensure_compile_time_eval():
    _OUTSIDE = get_opaque_trace_state()


def is_tracing() -> bool:
    """Returns whether the caller is being traced, e.g. by `jax.jit` or `jax.grad`.

    Example:
        >>> is_tracing(), jax.eval_shape(lambda: jnp.bool(is_tracing())).shape
        (False, ())
    """
    return bool(get_opaque_trace_state() != _OUTSIDE)


def trace_state() -> Any:
    """Returns a value that compares equal while the same JAX transformations trace.

    Example:
        >>> before, inside = trace_state(), []
        >>> _ = jax.eval_shape(lambda: inside.append(trace_state()))
        >>> trace_state() == before, inside[0] == before
        (True, False)
    """
    return get_opaque_trace_state()


def is_staging() -> bool:
    """Returns whether the caller's operations become equations of a compiled function.

    Example:
        >>> jax.grad(lambda x: (print(is_staging()), x)[1])(1.0).item()
        False
        1.0
        >>> jax.jit(jax.grad(lambda x: (print(is_staging()), x)[1]))(1.0).item()
        True
        1.0
    """
    return is_tracing() and isinstance(jnp.zeros(()), jax.core.Tracer)


def first_of_traces(values: Sequence[Any]) -> list[int]:
    """Finds one tracer of each transformation among some values.

    Args:
        values: Tracers and other values.

    Returns:
        The positions of tracers, the first of each trace.

    Example:
        >>> places = []
        >>> def mixed(x, y):
        ...     places.append(first_of_traces([1.0, x, 2 * x, y]))
        ...     return x * y
        >>> _ = jax.grad(mixed, argnums=(0, 1))(1.0, 2.0)
        >>> _ = jax.grad(lambda x: jax.grad(lambda y: mixed(x, y))(2.0))(1.0)
        >>> places
        [[1], [1, 3]]
    """
    places: dict[int, int] = {}
    for k, value in enumerate(values):
        if isinstance(value, jax.core.Tracer):
            places.setdefault(id(value._trace), k)
    return list(places.values())
