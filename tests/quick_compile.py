"""Compiling in a hurry, to slower programs: for tests whose time goes into it."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

_OPTION = "jax_disable_most_optimizations"


@contextmanager
def quick_compile(on: bool = True) -> Iterator[None]:
    """Switches most of XLA's optimizations off, or on; then as they were."""
    before = jax.config.read(_OPTION)
    jax.config.update(_OPTION, on)
    try:
        yield
    finally:
        jax.config.update(_OPTION, before)
