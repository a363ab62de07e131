"""Short labels for frontiers, as a state machine encodes them."""

from collections.abc import Sequence

# Explanation of the labels of `frontier_label`, by encoding.
READING = {
    "base": "A state is called by the types that are ready.",
    "max": "A state is called by the types that are ready, * by most operations.",
    "sort": "A state is called by the types that are ready, most operations first.",
    "fall": "A state is called by the two types that lower the smoothed bound most.",
}

_RANKED = ("sort", "fall")


def frontier_types(encoding: str, frontier: Sequence[int]) -> list[int]:
    """Lists the types in an encoded frontier, in the order of the encoding.

    Args:
        encoding: The encoding.
        frontier: The encoded frontier.

    Returns:
        The types.

    Example:
        >>> frontier_types("max", (1, 0, 1)), frontier_types("sort", (1, 0))
        ([0, 1], [1, 0])
    """
    return [*frontier[1:]] if encoding == "max" else [*frontier]


def frontier_label(
    encoding: str, frontier: Sequence[int], names: Sequence[str], limit: int = 40
) -> str:
    """Formats an encoded frontier on one line.

    Args:
        encoding: The encoding.
        frontier: The encoded frontier.
        names: Names of the types.
        limit: Types beyond this number of characters are only counted; the first type
            is always named.

    Returns:
        For example ``join > leaf`` (more operations of the first type are ready) or
        ``*join, leaf`` (the star marks the type with the most ready operations).

    Example:
        >>> frontier_label("max", (1, 0, 1), ["leaf", "join"])
        'leaf, *join'
        >>> frontier_label("sort", (1, 0, 2), ["leaf", "join", "out"], limit=12)
        'join > leaf > +1'
    """
    texts = [names[t] for t in frontier_types(encoding, frontier)]
    if encoding == "max":
        most = frontier_types(encoding, frontier).index(frontier[0])
        texts[most] = f"*{texts[most]}"
    between = " > " if encoding in _RANKED else ", "
    kept = 1
    while kept < len(texts) and len(between.join(texts[: kept + 1])) <= limit:
        kept += 1
    if kept < len(texts):
        texts[kept:] = [f"+{len(texts) - kept}"]
    return between.join(texts)
