"""The error of the workloads."""

from edbatch.errors import EdbatchError


class WorkloadError(EdbatchError, ValueError):
    """A workload, or an option of one, that does not exist or has no such value.

    Example:
        >>> from edbatch.models import get_workload
        >>> try:
        ...     get_workload("tree-lstn")
        ... except WorkloadError as error:
        ...     print(str(error).split("; ")[-1])
        did you mean 'tree-lstm'?
    """
