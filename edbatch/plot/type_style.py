"""Styles of node types: short names, and colours with hatches."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edbatch.graph import GraphStructure, TypeKey

# The hues of Okabe and Ito's palette, which are distinguishable with any colour vision,
# spaced by at least 9 in lightness L* (CIELAB) so that they also differ in greyscale;
# neighbours in the list differ by more. Of two colours that are close in greyscale one
# has a hatch, and each further round through the colours uses other hatches.
PALETTE = (
    "#0F559F",  # blue, L* 36
    "#EBA030",  # orange, 72
    "#2A9D6E",  # green, 58
    "#9BD3F3",  # sky blue, 82
    "#BC450F",  # vermillion, 46
    "#3B1559",  # aubergine, 16
    "#F3EC9B",  # yellow, 92
)
HATCHES = ("", "////", "....", "----", "xxxx", "||||", "ooo", "\\\\\\\\", "++++")
_FIRST_HATCH = (0, 0, 2, 1, 4, 0, 0)
_DARK = frozenset({"#0F559F", "#BC450F", "#3B1559"})


@dataclass(frozen=True)
class TypeStyle:
    """The fill of one type; `hatch` is in matplotlib's notation."""

    color: str
    hatch: str

    @property
    def ink(self) -> str:
        """Colour of hatches and text on the fill: white on dark fills, or black."""
        return "white" if self.color in _DARK else "black"


def type_style(position: int) -> TypeStyle:
    """Returns the fill of a type.

    Args:
        position: Position of the type among the types of its model.

    Returns:
        The fill.

    Example:
        >>> len({type_style(k) for k in range(63)})
        63
    """
    round_, color = divmod(position, len(PALETTE))
    hatch = (_FIRST_HATCH[color] + round_) % len(HATCHES)
    return TypeStyle(PALETTE[color], HATCHES[hatch])


def type_styles(
    types: Sequence[TypeKey] | None,
    structures: Iterable[GraphStructure] = (),
    others: Iterable[TypeKey] = (),
) -> dict[TypeKey, TypeStyle]:
    """Assigns a fill to each type of a plot.

    All graphs of one model list its types in the order in which recording met them, so
    a type has the same fill in all plots of these graphs. Policies from files list
    types in the order of their training.

    Args:
        types: The types of the model, in the order that determines the fills; None for
            the order of the graphs.
        structures: The graphs of the plot.
        others: Other types in the plot.

    Returns:
        The fill of each type.

    Example:
        >>> from edbatch.schedule.examples import chain
        >>> graph = chain("ab")
        >>> a, b = graph.type_keys
        >>> type_styles(None, [graph])[a] == type_styles([b, a], [graph])[b]
        True
    """
    order = dict.fromkeys(types or ())
    for each in structures:
        order |= dict.fromkeys(each.type_keys)
    order |= dict.fromkeys(others)
    return {key: type_style(k) for k, key in enumerate(order)}


def short_names(types: Sequence[TypeKey], limit: int = 24) -> list[str]:
    """Returns short, unique names of types.

    Args:
        types: The types.
        limit: Maximum length of a name, without the position that makes it unique.

    Returns:
        A unique name for each type: the cell's name if that is enough, otherwise with
        the last parts of the parameters' path or the arity.

    Example:
        >>> short_names([TypeKey("leaf", "embed", 0), TypeKey("join", "enc.up", 2)])
        ['leaf', 'join']
        >>> short_names([TypeKey("lstm", f"enc.{k}", 3) for k in ("left", "right")])
        ['lstm@left', 'lstm@right']
        >>> short_names([TypeKey("attend_to_all_source_words", "", 9)], limit=16)
        ['atten…urce_words']
    """
    names = [""] * len(types)
    for forms in zip(*map(_forms, types), strict=True):
        counts = Counter(forms)
        for k, form in enumerate(forms):
            if not names[k] and counts[form] == 1:
                names[k] = form
    full = [name or str(key) for name, key in zip(names, types, strict=True)]
    cut = [_cut(name, limit) for name in full]
    counts = Counter(cut)
    return [
        name if counts[name] == 1 else f"{name}#{position}"
        for position, name in enumerate(cut)
    ]


def _forms(key: TypeKey) -> tuple[str, ...]:
    """Returns possible names of a type, the shortest first."""
    parts = key.path.split(".")
    last, last_two = (
        f"{key.cell}@{'.'.join(parts[-k:])}" if key.path else key.cell for k in (1, 2)
    )
    return (
        key.cell,
        last,
        f"{key.cell}/{key.arity}",
        last_two,
        f"{last}/{key.arity}",
        f"{key.cell}@{key.path}",
        str(key),
    )


def _cut(name: str, limit: int) -> str:
    if len(name) <= limit:
        return name
    head = limit // 3
    return f"{name[:head]}…{name[len(name) + head + 1 - limit :]}"
