"""Faster compilation to slower programs, for tests that mostly compile."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

_OPTION = "jax_disable_most_optimizations"


@contextmanager
def quick_compile(on: bool = True) -> Iterator[None]:
    """Disables most of XLA's optimizations, or enables them, within a block."""
    before = jax.config.read(_OPTION)
    jax.config.update(_OPTION, on)
    try:
        yield
    finally:
        jax.config.update(_OPTION, before)
