"""Families: types that differ only in the path of their parameters.

The layers of a stack and the experts of a mixture call one cell with parameters of the
same structure. Each is a type, so that policies can distinguish the layers, but one
compiled loop can run all of them: their parameters are stacked, and a chunk's record
has the index of the member whose parameters it reads (`edbatch.cell.members`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, eq=False)
class Family:
    """Parameters of ``G`` members, which one compiled loop reads in turn.

    Compared by identity: a model has each family once.

    Attributes:
        leaves: Parameter leaves that differ between members, by position: those that
            the first type of the family reads.
        sources: For each of `leaves`, the leaf that each member reads in its place;
            empty if the members are instead the G entries of arrays ``[G, ...]``.
        entries: Number of members if they are entries of arrays, otherwise 0.
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
            stack: Stacks several parameters.

        Returns:
            One array ``[G, ...]`` for each leaf that differs.
        """
        if not self.sources:
            return [leaves[k] for k in self.leaves]
        return [stack([leaves[k] for k in each]) for each in self.sources]

    def spec(self, params: Any) -> Any:
        """Returns the structure of one member's parameters.

        Args:
            params: The structure of all, with ``jax.ShapeDtypeStruct`` leaves.

        Returns:
            The same pytree, with a single entry in place of each array of entries.
        """
        if self.sources:
            return params
        leaves, treedef = jax.tree.flatten(params)
        for k in self.leaves:
            leaves[k] = jax.ShapeDtypeStruct(leaves[k].shape[1:], leaves[k].dtype)
        return jax.tree.unflatten(treedef, leaves)
