"""New figures. Matplotlib is imported here, when the first one is made."""

from typing import TYPE_CHECKING

from edbatch.plot.errors import MissingMatplotlibError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """Makes an empty figure that belongs to nobody: pyplot does not know it.

    Args:
        width: In inches.
        height: In inches.

    Returns:
        The figure; whoever holds it can draw on it, and save it with ``savefig``.

    Raises:
        MissingMatplotlibError: Matplotlib is not installed.

    Example:
        >>> new_figure(4, 3).get_size_inches().tolist()
        [4.0, 3.0]
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingMatplotlibError(
            "a picture needs matplotlib, which is not installed; install it with: pip"
            " install 'edbatch[plot]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
