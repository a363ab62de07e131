"""The part of a state that a loop changes: the only part that it carries.

A program's state holds all arenas, and in gradients also the tapes and sums of each
type. A loop touches only those of its own type. Arrays that it would only pass through
stay out of its carry: JAX and XLA process each array of a carry in each loop, which
takes time quadratic in the number of types.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from edbatch.executor.program import ProgramShape


@dataclass(frozen=True)
class Touched:
    """The types and array kinds that a set of loops touches.

    Attributes:
        types: Types of the loops.
        values: Array kinds of the values that they read and write.
        externals: Array kinds of the external inputs that they read.
    """

    types: frozenset[int]
    values: frozenset[int]
    externals: frozenset[int]


def touched(program: ProgramShape, type_ids: Iterable[int]) -> Touched:
    """Returns the array kinds that the loops of some types touch."""
    ids = frozenset(type_ids)
    types = [program.types.types[each] for each in ids]
    values = (kind for each in types for kind in each.operand_kinds)
    written = (kind for each in types for kind in each.output_kinds)
    externals = (kind for each in types for kind in each.external_kinds)
    return Touched(ids, frozenset((*values, *written)), frozenset(externals))


class Parted(Protocol):
    """A named tuple of dicts, keyed by type or array kind, as a state."""

    def part(self, touched: Touched) -> Any:
        """Returns the part of the state that loops touch, as a state."""


_State = TypeVar("_State")


def part_of(state: _State, touched: Touched) -> _State:
    """Returns the part of a state that loops touch.

    Args:
        state: Values by array kind, or a `Parted`.
        touched: The types and array kinds that the loops touch.

    Returns:
        A state with fewer keys.
    """
    if isinstance(state, Mapping):
        return cast(_State, chosen(state, touched.values))
    return cast(_State, cast(Parted, state).part(touched))


def chosen(entries: Mapping[int, Any], keys: frozenset[int]) -> dict[int, Any]:
    """Returns the entries of a dict whose keys are in `keys`."""
    return {key: each for key, each in entries.items() if key in keys}


def joined(state: _State, part: _State) -> _State:
    """Puts the changed part of a state back into it.

    Args:
        state: The state.
        part: The part, as `part_of` returned it, with new arrays.

    Returns:
        The state after the loops.
    """
    if isinstance(state, dict):
        return cast(_State, state | cast(Any, part))
    pairs = zip(cast(Any, state), cast(Any, part), strict=True)
    return cast(Any, type(state))(*(all_of | own for all_of, own in pairs))
