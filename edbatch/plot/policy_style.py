"""How policies look: the same colour and marker in every picture."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PolicyStyle:
    """Colour, marker and dashes of one policy, as matplotlib writes them."""

    color: str
    marker: str
    dashes: str


# Okabe and Ito's palette, as for types.
_KNOWN = {
    "learned": PolicyStyle("#D55E00", "o", "-"),
    "learned alone": PolicyStyle("#D55E00", "*", ":"),
    "searched": PolicyStyle("#009E73", "D", "-"),
    "agenda": PolicyStyle("#0072B2", "s", "--"),
    "agenda-remaining": PolicyStyle("#CC79A7", "d", "--"),
    "depth": PolicyStyle("#56B4E9", "v", ":"),
    "greedy": PolicyStyle("#E69F00", "^", "-."),
}
_OTHERS = (
    PolicyStyle("#CC79A7", "P", "-"),
    PolicyStyle("#000000", "X", "-"),
    PolicyStyle("#D55E00", "<", "--"),
    PolicyStyle("#009E73", ">", "--"),
    PolicyStyle("#0072B2", "p", "-"),
    PolicyStyle("#E69F00", "h", "-"),
)


def policy_styles(names: Iterable[str]) -> dict[str, PolicyStyle]:
    """Assigns a style to each policy of a picture.

    Args:
        names: Names of policies; a name may occur again.

    Returns:
        The style of each, in the order in which they first occur. The rows of
        `edbatch compare` have their own; other names get those that are left, by turns.

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
