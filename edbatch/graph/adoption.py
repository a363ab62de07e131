"""Recordings of one table of types as recordings of another.

A recording that comes from another process has a table of its own. The table of the
process that uses it takes over its types, once; what is left per recording is a look-up
in arrays.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.output_tree import Outputs, Skeleton
from edbatch.graph.type_table import TypeTable


@dataclass(frozen=True, eq=False)
class Adoption:
    """Where the types and array kinds of a table are in another.

    Attributes:
        types: The other table.
        type_ids: Position there of each type; ``[T] int32``.
        kinds: Position there of each array kind; ``[K] int32``.
    """

    types: TypeTable
    type_ids: np.ndarray
    kinds: np.ndarray

    @cached_property
    def keeps_numbers(self) -> bool:
        """Whether all have the positions that they had."""
        return all(
            bool((each == np.arange(len(each))).all())
            for each in (self.type_ids, self.kinds)
        )

    def covers(self, table: TypeTable) -> bool:
        """Whether the table has not grown since."""
        return (len(table.types), len(table.avals)) == (
            len(self.type_ids),
            len(self.kinds),
        )

    def kind(self, kind: int) -> int:
        """Returns the position of an array kind."""
        return int(self.kinds[kind])

    def skeleton(self, skeleton: Skeleton) -> Skeleton:
        """Renumbers the structure of outputs, or of a result."""
        if skeleton[0] in ("value", "external"):
            return (skeleton[0], self.kind(skeleton[1]))
        if skeleton[0] == "node":
            return (*skeleton[:2], tuple(map(self.skeleton, skeleton[2])))
        if skeleton[0] in ("list", "fixed", "ragged"):
            return (*skeleton[:-1], self.skeleton(skeleton[-1]))
        return skeleton

    def graph(self, graph: DataflowGraph) -> DataflowGraph:
        """Renumbers a recording.

        Args:
            graph: A recording of the one table.

        Returns:
            The same recording of the other.
        """
        outputs = graph.outputs
        skeleton = self.skeleton(outputs.skeleton)
        skeleton = self.types.skeletons.setdefault(skeleton, skeleton)
        return replace(
            graph,
            types=self.types,
            node_type=self.type_ids[graph.node_type],
            externals={self.kind(k): pool for k, pool in graph.externals.items()},
            outputs=Outputs(skeleton, outputs.columns, outputs.lengths),
        )


def adopt(types: TypeTable, other: TypeTable) -> Adoption:
    """Takes over the types of another table.

    Args:
        types: The table that takes them.
        other: A table for parameters of the same structure.

    Returns:
        Where they are now.

    Raises:
        PickleError: A cell gave something else where it was recorded.
    """
    found, kinds = types.take_over(other)
    return Adoption(types, np.array(found, np.int32), np.array(kinds, np.int32))
