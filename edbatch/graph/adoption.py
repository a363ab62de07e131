"""Converts recordings of one table of types into recordings of another.

A recording that comes from another process has its own table. The table of the process
that uses it takes over its types, once; the remaining work per recording is a look-up
in arrays.
"""

from dataclasses import dataclass, replace

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.type_table import TypeTable


@dataclass(frozen=True, eq=False)
class Adoption:
    """Positions of an adopted table's types and array kinds in the adopting table.

    Attributes:
        types: The adopting table.
        type_ids: Position of each type in the adopting table; ``[T] int32``.
        kinds: Position of each array kind in the adopting table; ``[K] int32``.
    """

    types: TypeTable
    type_ids: np.ndarray
    kinds: np.ndarray

    def covers(self, table: TypeTable) -> bool:
        """Whether the adopted table has not grown since the adoption."""
        return (len(table.types), len(table.avals)) == (
            len(self.type_ids),
            len(self.kinds),
        )

    def kind(self, kind: int) -> int:
        """Returns the position of an array kind in the adopting table."""
        return int(self.kinds[kind])

    def graph(self, graph: DataflowGraph) -> DataflowGraph:
        """Renumbers a recording.

        Args:
            graph: A recording that refers to the adopted table.

        Returns:
            The same recording, referring to the adopting table.
        """
        tree = graph.outputs.tree.renumber(self.kind)
        tree = self.types.trees.setdefault(tree, tree)
        return replace(
            graph,
            types=self.types,
            node_type=self.type_ids[graph.node_type],
            externals={self.kind(k): pool for k, pool in graph.externals.items()},
            outputs=replace(graph.outputs, tree=tree),
        )


def adopt(types: TypeTable, other: TypeTable) -> Adoption:
    """Takes over the types of another table.

    Args:
        types: The adopting table.
        other: The adopted table, for parameters of the same structure.

    Returns:
        The positions of the other table's types and array kinds in `types`.

    Raises:
        PickleError: A cell returns other shapes, dtypes or structure than where it was
            recorded.
    """
    found, kinds = types.take_over(other)
    return Adoption(types, np.array(found, np.int32), np.array(kinds, np.int32))
