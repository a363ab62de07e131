"""The errors of the pictures."""

from edbatch.errors import EdbatchError


class PlotError(EdbatchError, ValueError):
    """Something that cannot be drawn, such as a comparison without rows.

    Example:
        >>> from edbatch.plot import plot_comparison
        >>> try:
        ...     plot_comparison({})
        ... except PlotError as error:
        ...     print(str(error).split(";")[0])
        a picture of a comparison needs workloads but there is none
    """


class MissingMatplotlibError(EdbatchError, ImportError):
    """Matplotlib, with which everything is drawn, is not installed."""


def check_max_states(max_states: int) -> None:
    """Checks how many states a picture shall show.

    Args:
        max_states: The number.

    Raises:
        PlotError: It is not positive.
    """
    if max_states < 1:
        raise PlotError(
            f"a picture shows 1 state or more but max_states is {max_states}; leave it"
            " out for the default"
        )
