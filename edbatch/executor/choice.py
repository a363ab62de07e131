"""Chooses the executor for a target."""

from edbatch.executor.base import Executor
from edbatch.executor.loops import Loops
from edbatch.target import Target


def executor_of(target: Target) -> Executor:
    """Returns the executor of a target.

    Args:
        target: The kind of device.

    Returns:
        The same executor for every kind of device: whether it reaches a chunk's code by
        loops or a switch is a field of the target (`edbatch.executor.loops.walk`).

    Example:
        >>> from edbatch.target import CPU
        >>> executor_of(CPU)
        Loops()
    """
    return Loops()
