"""Reuses an MLIR context for many programs that a thread lowers.

JAX makes a context, and loads its dialects, for each program. This takes half the time
of lowering a small one, and a test session lowers some twenty thousand.
"""

import threading
from collections.abc import Callable
from typing import Any

from jax._src.interpreters import mlir

_PROGRAMS = 100  # memory that a context keeps for them is freed with it


class SharedContexts:
    """A pytest plugin that makes JAX reuse contexts."""

    def __init__(self) -> None:
        self._own = threading.local()

    def pytest_sessionstart(self) -> None:
        make: Callable[[], Any] = mlir.make_ir_context

        def shared() -> Any:
            if _is_in_a_context():  # a shared context would mix this lowering into it
                return make()
            own = self._own
            if getattr(own, "left", 0) == 0:
                own.context, own.left = make(), _PROGRAMS
            own.left -= 1
            return own.context

        mlir.make_ir_context = shared


def _is_in_a_context() -> bool:
    try:
        return mlir.ir.Context.current is not None
    except ValueError:
        return False
