"""Families: types that differ in the path of their parameters alone.

The layers of a stack and the experts of a mixture call one cell with parameters of one
structure. Each is a type, so that policies tell the layers apart, but one compiled loop
can run all of them: their parameters stand stacked, and a chunk's record says which
member's it reads (`edbatch.cell.members`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Family:
    """Parameters that one compiled loop reads in turn, of ``G`` members.

    Compared by identity: a model has each family once.

    Attributes:
        leaves: Which leaves of the parameters the members do not have in common, by
            their positions in the first type of the family.
        sources: For each of them, the leaf that takes its place, by member.
    """

    leaves: tuple[int, ...]
    sources: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Number of members, G."""
        return len(self.sources[0])
