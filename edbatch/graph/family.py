"""Families: types that differ in the path of their parameters alone.

The layers of a stack and the experts of a mixture call one cell with parameters of one
structure. Each is a type, so that policies tell the layers apart, but one compiled loop
can run all of them: their parameters stand stacked, and a chunk's record says which
member's it reads (`edbatch.cell.members`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, eq=False)
class Family:
    """Parameters that one compiled loop reads in turn, of ``G`` members.

    Compared by identity: a model has each family once.

    Attributes:
        leaves: Which leaves of the parameters the members do not have in common, by
            their positions in the first type of the family.
        sources: For each of them, the leaf that takes its place, by member; empty where
            members are the entries ``[G, ...]`` of these leaves.
        entries: Number of entries in that case.
    """

    leaves: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]
    entries: int = 0

    @property
    def size(self) -> int:
        """Number of members, G."""
        return len(self.sources[0]) if self.sources else self.entries

    def stacks(
        self, leaves: Sequence[Any], stack: Callable[[Sequence[Any]], Any]
    ) -> list[Any]:
        """Returns the parameters that differ between members.

        Args:
            leaves: All parameters.
            stack: Stacks several of them.

        Returns:
            ``[G, ...]`` for each of `leaves`.
        """
        if not self.sources:
            return [leaves[k] for k in self.leaves]
        return [stack([leaves[k] for k in each]) for each in self.sources]

    def spec(self, params: Any) -> Any:
        """Returns the structure of the parameters of one member.

        Args:
            params: That of all, with ``jax.ShapeDtypeStruct`` leaves.

        Returns:
            The same pytree, entries in place of the arrays that have them.
        """
        if self.sources:
            return params
        leaves, treedef = jax.tree.flatten(params)
        for k in self.leaves:
            leaves[k] = jax.ShapeDtypeStruct(leaves[k].shape[1:], leaves[k].dtype)
        return jax.tree.unflatten(treedef, leaves)
