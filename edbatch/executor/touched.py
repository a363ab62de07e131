"""The part of a state that a loop changes, so that it carries no more.

A program's state holds all arenas, and in gradients tapes and sums of each type. A loop
touches those of its own type. What it would only hand on stays out of its carry: JAX
and XLA look at each array of a carry in each loop, which is a square of the types.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from edbatch.executor.program import ProgramShape


@dataclass(frozen=True)
class Touched:
    """The arrays that loops touch.

    Attributes:
        types: Their types.
        values: Array kinds of the values that they read and write.
        externals: Array kinds of the external inputs that they read.
    """

    types: frozenset[int]
    values: frozenset[int]
    externals: frozenset[int]


def touched(program: ProgramShape, type_ids: Iterable[int]) -> Touched:
    """Returns what the loops of some types touch."""
    ids = frozenset(type_ids)
    types = [program.types.types[each] for each in ids]
    values = (kind for each in types for kind in each.operand_kinds)
    written = (kind for each in types for kind in each.output_kinds)
    externals = (kind for each in types for kind in each.external_kinds)
    return Touched(ids, frozenset((*values, *written)), frozenset(externals))


class Parted(Protocol):
    """A state of dicts, by type or array kind: a named tuple of them."""

    def part(self, touched: Touched) -> Any:
        """Returns what loops touch, as a state."""


_State = TypeVar("_State")


def part_of(state: _State, touched: Touched) -> _State:
    """Returns what loops touch of a state.

    Args:
        state: Values by array kind, or a `Parted`.
        touched: What they touch.

    Returns:
        A state with fewer keys.
    """
    if isinstance(state, Mapping):
        return cast(_State, chosen(state, touched.values))
    return cast(_State, cast(Parted, state).part(touched))


def chosen(entries: Mapping[int, Any], keys: frozenset[int]) -> dict[int, Any]:
    """Returns the entries of a dict with some keys."""
    return {key: each for key, each in entries.items() if key in keys}


def joined(state: _State, part: _State) -> _State:
    """Puts a part of a state, which loops have changed, back into it.

    Args:
        state: The state.
        part: The part, as `part_of` returned it, with other arrays.

    Returns:
        The state after the loops.
    """
    if isinstance(state, dict):
        return cast(_State, state | cast(Any, part))
    pairs = zip(cast(Any, state), cast(Any, part), strict=True)
    return cast(Any, type(state))(*(all_of | own for all_of, own in pairs))
