"""Which executor runs the programs of a target."""

from edbatch.executor.base import Executor
from edbatch.executor.loops import Loops
from edbatch.target import Target


def executor_of(target: Target) -> Executor:
    """Returns the executor of a target.

    Args:
        target: The kind of device.

    Returns:
        Nested loops for every kind, as yet: on a GPU each loop asks the host whether to
        go on, which an executor of one switch per chunk would do once.

    Example:
        >>> from edbatch.target import CPU
        >>> executor_of(CPU)
        Loops()
    """
    return Loops()
