"""Keys of nodes: the JAX random keys that cells draw numbers with.

A cell whose function has an argument `rng` gets its own key in each call. The key is
derived from the caller's key, the instance's position in the minibatch and the number
of earlier calls of that instance that took a key. So it depends neither on the other
instances nor on how the minibatch is scheduled, laid out, packed or padded, and the
model can be given the same keys when it runs on one instance at a time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from edbatch.errors import CellError, PlanError
from edbatch.graph.context import context

# With other generators, the numbers drawn depend on how keys are batched together.
GENERATOR = "threefry2x32"
NODE_KEY: Any = object()  # placeholder for a node's key in the arguments of a call


def is_key(dtype: Any) -> bool:
    """Tells whether a dtype is that of typed keys (``jax.random.key``).

    Args:
        dtype: A dtype.

    Returns:
        Whether arrays of that dtype contain keys.

    Example:
        >>> is_key(jax.random.key(0).dtype), is_key(jax.random.PRNGKey(0).dtype)
        (True, False)
    """
    if isinstance(dtype, np.dtype):  # true in nearly all cases
        return False
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


@cache
def key_dtype() -> Any:
    """Returns the dtype of the keys that cells get."""
    # Only the shape is evaluated: a process that only records starts no XLA client.
    return jax.eval_shape(partial(jax.random.key, impl=GENERATOR), 0).dtype


def typed_key(rng: Any) -> Array:
    """Checks a caller's key and converts a raw key to a typed one.

    Args:
        rng: ``jax.random.key(...)``, or ``jax.random.PRNGKey(...)``: uint32.

    Returns:
        The typed key, a scalar.

    Raises:
        CellError: It is not a single key of the generator that cells draw with.
    """
    shape, dtype = np.shape(rng), getattr(rng, "dtype", None)
    if dtype == key_dtype() and shape == ():
        return rng
    if dtype == np.uint32 and shape == (2,):
        return jax.random.wrap_key_data(rng, impl=GENERATOR)
    found = type(rng).__name__ if dtype is None else f"{dtype}{list(shape)}"
    raise CellError(
        f"rng takes one key of JAX's generator {GENERATOR}, {key_dtype()}[] or its raw"
        f" form uint32[2], but received {found}; pass jax.random.key(seed), with"
        f" impl={GENERATOR!r} if another is your default, or one key of a split"
    )


def node_key(rng: Array, instance: Any, call: Any) -> Array:
    """Derives the key of one call of a cell.

    Args:
        rng: The caller's key, typed.
        instance: Position of the instance in the minibatch.
        call: Number of earlier calls of this instance that took a key.

    Returns:
        The key, typed.
    """
    return jax.random.fold_in(jax.random.fold_in(rng, instance), call)


class CallKeys:
    """Keys for the successive calls of one instance.

    Args:
        rng: The caller's key, typed.
        instance: Position of the instance in the minibatch.
    """

    def __init__(self, rng: Array, instance: int) -> None:
        self._rng = rng
        self._instance = instance
        self._calls = 0

    def next(self) -> Array:
        """Returns the key of the next call."""
        self._calls += 1
        return node_key(self._rng, self._instance, self._calls - 1)

    def give_back(self) -> None:
        """Takes back the last key, whose call failed; the next call gets it."""
        self._calls -= 1


@contextmanager
def cell_keys(rng: Any, instance: int = 0) -> Iterator[None]:
    """Gives cells their random keys while a model runs unbatched.

    In this context, cells that take `rng` get the keys that the batched function would
    give them for this instance of a minibatch. Keys are counted in the order of the
    calls: enter the context again for each run of the model, and enter it inside the
    function if that is compiled or differentiated.

    Args:
        rng: The key, as for ``batched.apply(..., rng=...)``.
        instance: Position of the instance in the minibatch.

    Yields:
        Nothing.

    Raises:
        CellError: `rng` is not a key.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def noise(size, rng):
        ...     return size * jax.random.normal(rng)
        >>> def model(params, size):
        ...     return noise(size)
        >>> key = jax.random.key(0)
        >>> batched = eb.batch(model)(None, [1.0, 1.0], rng=key)
        >>> with eb.cell_keys(key, instance=1):
        ...     one = model(None, 1.0)
        >>> bool(batched[1] == one), bool(batched[0] == one)
        (True, False)
    """
    before, context.keys = context.keys, CallKeys(typed_key(rng), instance)
    try:
        yield
    finally:
        context.keys = before


def missing_key(cell: str) -> PlanError:
    """Returns the error for a cell that needs a key in a minibatch without one.

    Args:
        cell: The name of the cell.
    """
    return PlanError(
        f"cell {cell!r} takes a key, 'rng', but the minibatch is run without one; pass"
        " rng=jax.random.key(seed) to apply, to the batched function, to eb.verify or"
        " to eb.Server (edbatch serve --rng-seed), or give the argument a default"
        " (rng=None)"
    )
