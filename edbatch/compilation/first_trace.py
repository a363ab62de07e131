"""What a user's function was first traced to, to see whether it is still the same.

A function may read variables beside its arguments: globals, closures, attributes.
`jax.jit` keeps the values of the first call for a signature. Here the coarse program
does, and the fine one is traced later, when a variable may have another value. Then the
program must not be swapped in: results would change at a moment that nobody chose.
"""

from typing import Any

from edbatch.cell.jaxpr import body_of, changeable_constants, same_operations
from edbatch.errors import CompilationError


class FirstTrace:
    """The trace that a coarse program was compiled from.

    Args:
        traced: As ``jax.jit(function).trace`` returns it.
    """

    def __init__(self, traced: Any) -> None:
        self._body = body_of(traced.jaxpr)
        self._constants = changeable_constants(self._body)

    def check(self, again: Any) -> None:
        """Compares a later trace with this one.

        Args:
            again: The trace of the same function with the same arguments.

        Raises:
            CompilationError: It is of other operations or constants.
        """
        self.check_constants()
        if not same_operations(self._body, body_of(again.jaxpr)):
            raise _changed()

    def check_constants(self) -> None:
        """Checks that arrays of NumPy among the constants are as they were.

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
