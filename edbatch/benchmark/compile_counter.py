"""Counts all XLA compilations in a process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from edbatch.compilation.tier import try_options
from edbatch.target import choose_target

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCount:
    """Running number of compilations.

    Attributes:
        programs: Number of programs that XLA compiled or that JAX read from its
            persistent cache.
    """

    def __init__(self) -> None:
        self.programs = 0
        self._lock = threading.Lock()

    def _listen(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _EVENT:
            with self._lock:
                self.programs += 1


@contextmanager
def count_compiles() -> Iterator[CompileCount]:
    """Counts the programs that are compiled in this context, in any thread.

    Excludes the small programs with which edbatch checks once per process which
    compiler options this version of XLA supports.

    Yields:
        The count, which is updated until the context ends.

    Example:
        >>> import jax.numpy as jnp
        >>> with count_compiles() as count:
        ...     _ = jax.jit(lambda x: x + 1)(jnp.ones(3))
        ...     before = count.programs
        ...     _ = jax.jit(lambda x: x + 2).lower(jnp.ones(3)).compile()
        >>> count.programs - before
        1
    """
    try_options(choose_target())
    count = CompileCount()
    jax.monitoring.register_event_duration_secs_listener(count._listen)
    try:
        yield count
    finally:
        jax.monitoring.unregister_event_duration_listener(count._listen)
