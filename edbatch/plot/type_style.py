"""How types of operations look: short names, and colours with hatches."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from edbatch.graph import TypeKey

# Okabe and Ito's palette, which people with any colour vision can tell apart, without
# its black. Every further round of colours has another hatch.
PALETTE = (
    "#0072B2",  # blue
    "#E69F00",  # orange
    "#009E73",  # bluish green
    "#CC79A7",  # reddish purple
    "#56B4E9",  # sky blue
    "#D55E00",  # vermillion
    "#F0E442",  # yellow
)
HATCHES = ("", "////", "....", "----", "xxxx", "||||", "ooo", "\\\\\\\\", "++++")


@dataclass(frozen=True)
class TypeStyle:
    """How one type is filled; `hatch` as matplotlib writes it."""

    color: str
    hatch: str


def type_style(position: int) -> TypeStyle:
    """Returns the fill of a type.

    Args:
        position: Position of the type among those of its model.

    Example:
        >>> len({type_style(k) for k in range(63)})
        63
    """
    round_, color = divmod(position, len(PALETTE))
    return TypeStyle(PALETTE[color], HATCHES[round_ % len(HATCHES)])


def short_names(types: Sequence[TypeKey], limit: int = 24) -> list[str]:
    """Names types by as little as tells them apart.

    Returns:
        A name for each, different from the others': the cell alone where that is
        enough, else with the last parts of the parameters' path or the arity.

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
    """Possible names of a type, the shortest first."""
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
