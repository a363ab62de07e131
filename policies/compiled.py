"""Compilation of the innermost functions of this package."""

from collections.abc import Callable
from typing import Any, Literal

from numba import njit


def without_counting(
    inline: Literal["never", "always"] = "never",
) -> Callable[[Callable[..., Any]], Any]:
    """Makes a decorator like `numba.njit`, for functions that only borrow arrays.

    Compiled code counts references to the arrays of its arguments. Where a function has
    several ways out, Numba cannot tell that the counts cancel, so handing it twenty
    arrays costs forty atomic operations: at a few nodes per call, a quarter of a
    schedule's time. Such a function is compiled without counting; it must not allocate.

    Returns:
        The decorator; results are cached, and the GIL is released.
    """
    options: dict[str, Any] = {"cache": True, "nogil": True, "inline": inline}
    uncounted: dict[str, Any] = options | {"_nrt": False}

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return njit(**uncounted)(function)
        except KeyError:  # Numba tests this option but does not promise it
            return njit(**options)(function)

    return decorate
