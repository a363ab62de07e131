"""Reads legends and texts of matplotlib figures."""

from typing import Any


def legend_labels(figure: Any) -> list[str]:
    """The entries of a figure's one legend."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def rendered(figure: Any) -> Any:
    """Draws a figure, which raises if anything in it cannot be drawn."""
    figure.canvas.draw()
    return figure


def overlapping(texts: list[Any], figure: Any) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes overlap once the figure is drawn."""
    renderer = rendered(figure).canvas.get_renderer()
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in texts]
    return [
        (one, other)
        for k, (one, box) in enumerate(boxes)
        for other, second in boxes[k + 1 :]
        if box.overlaps(second)
    ]
