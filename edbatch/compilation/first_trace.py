"""First trace of a user's function, to detect that a later trace differs.

A function may read variables besides its arguments: globals, closures, attributes.
`jax.jit` keeps the values of the first call for a signature. Here the coarse program
keeps them, and the fine one is traced later, when a variable may have another value. In
that case the fine program must not be swapped in: results would change at an arbitrary
moment.
"""

from typing import Any

from edbatch.cell.jaxpr import body_of, changeable_constants, same_operations
from edbatch.errors import CompilationError


class FirstTrace:
    """The trace that a coarse program was compiled from.

    Args:
        traced: The trace, as returned by ``jax.jit(function).trace``.
    """

    def __init__(self, traced: Any) -> None:
        self._body = body_of(traced.jaxpr)
        self._constants = changeable_constants(self._body)

    def check(self, again: Any) -> None:
        """Compares a later trace with this one.

        Args:
            again: The trace of the same function with the same arguments.

        Raises:
            CompilationError: Its operations or constants differ.
        """
        self.check_constants()
        if not same_operations(self._body, body_of(again.jaxpr)):
            raise _changed()

    def check_constants(self) -> None:
        """Checks that NumPy arrays among the constants are unchanged.

        Raises:
            CompilationError: One was changed in place.
        """
        if changeable_constants(self._body) != self._constants:
            raise _changed()


def _changed() -> CompilationError:
    return CompilationError(
        "the function reads a variable that has changed since its first call, or it is"
        " not traced to the same operations each time; the values of the first call"
        " stay, as with jax.jit; pass what changes as an argument, or call eb.jit again"
    )
