"""The executor of a target."""

from edbatch.executor.base import Executor
from edbatch.executor.loops import Loops
from edbatch.target import Target


def executor_of(target: Target) -> Executor:
    """Returns the executor of a target.

    Args:
        target: The kind of device.

    Returns:
        One for every kind: how it comes to the code of a chunk, by loops or a switch,
        is a field of the target (`edbatch.executor.loops.walk`).

    Example:
        >>> from edbatch.target import CPU
        >>> executor_of(CPU)
        Loops()
    """
    return Loops()
