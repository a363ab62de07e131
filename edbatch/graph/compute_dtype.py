"""Cells that compute in a dtype other than that of the parameters.

The compute dtype corresponds to the `dtype` of a Flax module, as opposed to its
`param_dtype`: a cell's arguments are cast to it, its results are not cast back, and
parameters and their gradients keep their dtype. Non-floating numbers, keys and static
arguments are not cast. A cell called by another cell is a plain function: its arguments
are not cast again.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.errors import PlanError, shown
from edbatch.graph.context import context

_DTYPES = ("bfloat16", "float16", "float32")


def checked_dtype(dtype: Any) -> np.dtype | None:
    """Checks the compute dtype that a user passes.

    Args:
        dtype: A dtype or its name; None for the dtypes of parameters and inputs.

    Returns:
        The dtype.

    Raises:
        PlanError: It is not a dtype that cells can compute in.

    Example:
        >>> str(checked_dtype("bfloat16"))
        'bfloat16'
    """
    if dtype is None:
        return None
    found = None
    if not isinstance(dtype, np.generic | np.ndarray | jax.Array):  # values, not dtypes
        with suppress(TypeError):
            found = jnp.dtype(dtype)
    if found is None or found.name not in _DTYPES:
        raise PlanError(
            f"compute_dtype of eb.batch is one of {', '.join(_DTYPES)}, but this is"
            f" {shown(dtype)}; pass jnp.bfloat16, or leave it out to compute in the"
            " parameters' own dtype"
        )
    return found


def computing(
    function: Callable[..., Any],
    names: Sequence[str],
    static: Collection[str],
    dtype: np.dtype,
) -> Callable[..., Any]:
    """Returns a cell's function, computing in a dtype.

    Args:
        function: The function.
        names: The names of its arguments, in order.
        static: The names of its arguments that are compile-time constants.
        dtype: The dtype, a floating-point one.

    Returns:
        A function with the same arguments.
    """

    @functools.wraps(function)
    def compute(*args: Any, **kwargs: Any) -> Any:
        cast = functools.partial(_cast, dtype=dtype)
        own = [
            each if k < len(names) and names[k] in static else jax.tree.map(cast, each)
            for k, each in enumerate(args)
        ]
        named = {
            name: each if name in static else jax.tree.map(cast, each)
            for name, each in kwargs.items()
        }
        with computing_in(None):  # for cells that the function calls
            return function(*own, **named)

    return compute


def cast_returned_parameters(result: Any, params: Any, dtype: np.dtype) -> Any:
    """Casts the parameters in a model's result, as batched runs do.

    Args:
        result: The model's return value, a pytree.
        params: The model's parameters.
        dtype: The dtype that its cells compute in.

    Returns:
        The result; its other leaves are unchanged.
    """
    own = {id(each) for each in jax.tree.leaves(params)}

    def cast(leaf: Any) -> Any:
        if id(leaf) not in own:
            return leaf
        return _cast(jnp.asarray(leaf) if isinstance(leaf, float) else leaf, dtype)

    return jax.tree.map(cast, result)


def _cast(leaf: Any, dtype: np.dtype) -> Any:
    own = getattr(leaf, "dtype", None)
    if own is None or own == dtype or not jnp.issubdtype(own, jnp.floating):
        return leaf
    return jnp.asarray(leaf).astype(dtype)


@contextmanager
def computing_in(dtype: np.dtype | None) -> Iterator[None]:
    """Makes cells compute in a dtype while models run unbatched in this context.

    Args:
        dtype: The dtype; None for the dtypes of the cells' arguments.

    Yields:
        Nothing.
    """
    before, context.compute_dtype = context.compute_dtype, dtype
    try:
        yield
    finally:
        context.compute_dtype = before
