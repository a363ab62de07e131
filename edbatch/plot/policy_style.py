"""Styles of policies: the same colour and marker in every plot."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyStyle:
    """Colour, marker and line style of one policy, in matplotlib's notation."""

    color: str
    marker: str
    dashes: str | tuple[int, tuple[float, ...]]


# The hues of the types' palette. In greyscale, markers and dashes distinguish them.
_KNOWN = {
    "learned": PolicyStyle("#BC450F", "o", "-"),
    "learned alone": PolicyStyle("#BC450F", "*", (0, (1, 1))),
    "searched": PolicyStyle("#2A9D6E", "D", (0, (8, 1))),
    "agenda": PolicyStyle("#0F559F", "s", "--"),
    "agenda-remaining": PolicyStyle("#3B1559", "d", (0, (4, 1, 1, 1, 1, 1))),
    "depth": PolicyStyle("#56B4E9", "v", ":"),
    "greedy": PolicyStyle("#EBA030", "^", "-."),
}
_OTHERS = (
    PolicyStyle("#8F3F71", "P", "-"),
    PolicyStyle("#000000", "X", "-"),
    PolicyStyle("#BC450F", "<", "--"),
    PolicyStyle("#2A9D6E", ">", "--"),
    PolicyStyle("#0F559F", "p", "-"),
    PolicyStyle("#EBA030", "h", "-"),
)


def policy_styles(names: Iterable[str]) -> dict[str, PolicyStyle]:
    """Assigns a style to each policy of a plot.

    Args:
        names: Names of policies, possibly repeated.

    Returns:
        The style of each name, in order of first occurrence. The rows of
        `edbatch compare` have fixed styles; other names cycle through the remaining
        ones.

    Example:
        >>> styles = policy_styles(["fsm-sort", "greedy", "fsm-sort"])
        >>> list(styles), styles["greedy"].marker
        (['fsm-sort', 'greedy'], '^')
    """
    styles: dict[str, PolicyStyle] = {}
    strangers = 0
    for name in names:
        if name in styles:
            continue
        if name in _KNOWN:
            styles[name] = _KNOWN[name]
        else:
            styles[name] = _OTHERS[strangers % len(_OTHERS)]
            strangers += 1
    return styles
