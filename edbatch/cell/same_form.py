"""Types of one form: types that differ only in which parameter arrays they read.

The rounds of a message-passing network call one cell with matrices of the same shapes.
If a family would not pay (`shared_types`), each round has its own loops, but these run
the same cell: it is traced, packed and divided once and, if loops call it, lowered
once. The network of the tests has 7 forms for its 17 types, and the fine gradient has
5,742 distinct equations instead of 8,221.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from edbatch.graph.constants import number_marks
from edbatch.graph.node_type import NodeType
from edbatch.graph.parameters import part_of
from edbatch.graph.type_table import TypeTable


@dataclass(frozen=True)
class Form:
    """The first type of a form, and the positions of another type's parameters.

    Attributes:
        first: The type of the form for which `form_of` was called first.
        places: Pairs of positions of parameter arrays: the array that the first type
            reads, and the array that this type reads at the same place of the call.
    """

    first: NodeType
    places: tuple[tuple[int, int], ...]

    def arranged(self, params: Any) -> Any:
        """Puts the parameters that the type reads at the positions of the first type's.

        Args:
            params: The model's parameters.

        Returns:
            A pytree with the structure of `params`.
        """
        leaves, treedef = jax.tree.flatten(params)
        arranged = list(leaves)
        for own, other in self.places:
            arranged[own] = leaves[other]
        return jax.tree.unflatten(treedef, arranged)


def form_of(node_type: NodeType, types: TypeTable) -> Form:
    """Finds the first type of a type's form.

    Args:
        node_type: The type.
        types: The type's table.

    Returns:
        The form; a type that runs for a family has a form of its own.
    """
    if node_type.family is not None:
        return Form(node_type, ())

    def make() -> Form:
        places = _places(node_type, types)
        key = form_of, _key(node_type, types, places)
        first, known = types.derived(key, lambda: (node_type, places))
        return Form(first, tuple(zip(known, places, strict=True)))

    return types.derived((form_of, node_type), make)


def _places(node_type: NodeType, types: TypeTable) -> tuple[int, ...]:
    """Positions of the parameter arrays that a call takes, in the order of the call."""
    leaves, treedef = jax.tree.flatten(types.params_spec)
    positions = jax.tree.unflatten(treedef, range(len(leaves)))
    found: list[int] = []
    for kind, content in node_type.template.leaves:
        if kind == "parameter":
            found += jax.tree.leaves(part_of(positions, content._steps))
    return tuple(found)


def _key(node_type: NodeType, types: TypeTable, places: Sequence[int]) -> Hashable:
    """The properties that all types of one form share."""
    template = node_type.template.with_exact_constants()
    leaves = []
    for kind, content in template.leaves:
        if kind == "parameter":
            arrays, treedef = jax.tree.flatten(
                part_of(types.params_spec, content._steps)
            )
            shapes = tuple((each.shape, each.dtype) for each in arrays)
            content = treedef, number_marks(treedef), shapes
        leaves.append((kind, content))
    order = sorted(set(places))
    return (
        id(node_type.function),
        template.treedef,
        tuple(leaves),
        tuple(map(order.index, places)),  # which of them are the same, and their order
        (template.operands, template.externals, template.paddings),
        (node_type.operand_kinds, node_type.external_kinds, node_type.output_kinds),
        node_type.output_tree,
    )
