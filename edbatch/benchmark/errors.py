"""The error of the benchmark."""

from edbatch.errors import EdbatchError


class BenchmarkError(EdbatchError, ValueError):
    """A benchmark that cannot be run as asked.

    Example:
        >>> from edbatch.benchmark import BenchmarkConfig
        >>> try:
        ...     BenchmarkConfig(systems=("exakt",))
        ... except BenchmarkError as error:
        ...     print(str(error).split("; ")[-1])
        did you mean 'exact'?
    """


class UnsupportedError(BenchmarkError):
    """A system cannot run a workload; the message says why.

    Example:
        >>> str(UnsupportedError("its nodes are of 2 types"))
        'its nodes are of 2 types'
    """
