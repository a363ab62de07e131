"""Activity analysis: finds the values that depend on the differentiated inputs.

These values are *active*. All others are constant in the backward pass, as they are in
the model of one instance: a loop that cannot be differentiated may read them, and they
cost nothing.
"""

from collections.abc import Collection, Sequence

from jax import Array

from edbatch.cell.backward import TapedCell
from edbatch.executor.program import ProgramShape
from edbatch.graph.node_type import Slots


def active_kinds(
    shape: ProgramShape, cells: dict[int, TapedCell], pools: set[int]
) -> set[int]:
    """Finds the array kinds of active values.

    Arrays of the same kind are not distinguished.

    Args:
        shape: The program.
        cells: Its cells, by type.
        pools: Array kinds of the differentiated external inputs; the parameters are
            differentiated, too.

    Returns:
        Array kinds.
    """
    types = {type_id: shape.types.types[type_id] for type_id in cells}
    found: set[int] = set()
    while True:
        before = len(found)
        for type_id, node_type in types.items():
            active = cells[type_id].active_outputs(
                read_from(node_type.operand_kinds, node_type.template.operands, found),
                read_from(
                    node_type.external_kinds, node_type.template.externals, pools
                ),
            )
            kinds = zip(node_type.output_kinds, active, strict=True)
            found.update(kind for kind, is_active in kinds if is_active)
        if len(found) == before:
            return found


def read_from(
    kinds: tuple[int, ...], groups: tuple[Slots, ...], some: Collection[int]
) -> list[bool]:
    """Returns which groups of slots read arrays of some kinds.

    Args:
        kinds: Array kind per slot.
        groups: Slots per argument.
        some: The array kinds.

    Returns:
        For each group, whether it reads an array of one of these kinds.
    """
    return [kinds[group.slots[0]] in some for group in groups]


def take(arrays: list[Array], which: Sequence[bool]) -> list[Array | None]:
    """Takes some arrays of a list.

    Args:
        arrays: The list.
        which: Whether to take each.

    Returns:
        The list, with None in place of the other arrays.
    """
    return [each if is_in else None for each, is_in in zip(arrays, which, strict=True)]


def put(some: list[Array | None], arrays: list[Array]) -> list[Array]:
    """Inverse of `take`: replaces None by the entries of `arrays`.

    Args:
        some: The result of `take`, or as many arrays of the same shapes.
        arrays: The list that `take` was applied to.

    Returns:
        The list, with the arrays of `some`.
    """
    pairs = zip(some, arrays, strict=True)
    return [own if taken is None else taken for taken, own in pairs]
