"""Serializes recordings of worker processes in few bytes, without a table of types.

A worker records with its own table of types, which numbers types in the order in which
that worker met them. So a recording travels with the *definitions* of its types: each
is pickled once and sent as the same bytes every time, and the receiver looks the bytes
up in a dict. Each message can be read without any other: messages of an abandoned loop
can be dropped, and it does not matter which worker sent which message.

The receiver numbers a type, and an array kind, when it reads the first recording that
has it: types in the order of their first nodes, the kinds of a type in the order of its
slots. Recording itself would meet them in the same order. So a process that reads
recordings in the order of their minibatches has the types, the kinds and the graphs
that it would have if it had recorded the instances itself, whatever the order in which
the workers ran.
"""

import pickle
from typing import NamedTuple

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.output_tree import Outputs, OutputTree
from edbatch.graph.stored_type import portable
from edbatch.graph.type_table import TypeTable

_PROTOCOL = 5


class PackedGraph(NamedTuple):
    """A dataflow graph that needs no table of types.

    ``N`` nodes, ``T`` types, ``E`` operand slots, ``X`` external slots, ``B``
    instances.

    Attributes:
        types: Definitions of its types, in the order of their first nodes; T of them.
        first_types: Number of these types that the first instance has.
        node_type: Type of each node, as an index into `types`; ``[N] uint8``, or wider.
        operands: As in `DataflowGraph`; ``[E] int32``.
        external_rows: As in `DataflowGraph`; ``[X] int32``.
        externals: Pools of external inputs with the definitions of their array kinds.
        tree: Definition of the structure of the outputs.
        columns: As in `Outputs`.
        lengths: As in `Outputs`.
        instance_nodes: Number of nodes of each instance; ``[B] int32``.
        num_values: Number of values.
    """

    types: tuple[bytes, ...]
    first_types: int
    node_type: np.ndarray
    operands: np.ndarray
    external_rows: np.ndarray
    externals: tuple[tuple[bytes, np.ndarray], ...]
    tree: bytes
    columns: tuple[np.ndarray, ...]
    lengths: tuple[np.ndarray, ...]
    instance_nodes: np.ndarray
    num_values: int


class GraphPacker:
    """Packs the recordings of one table of types.

    Args:
        types: The table.
    """

    def __init__(self, types: TypeTable) -> None:
        self._table = types
        self._types: dict[int, bytes] = {}
        self._kinds: dict[int, bytes] = {}
        self._trees: dict[OutputTree, bytes] = {}

    def pack(self, graph: DataflowGraph) -> PackedGraph:
        """Packs a recording.

        Args:
            graph: A recording that uses this table.

        Returns:
            A packed graph that another process of the model can read.

        Raises:
            PickleError: A cell, or a constant that it was called with, has no name that
                another process could import.
        """
        assert graph.types is self._table, "a packer is of one table"
        found, first, places = np.unique(
            graph.node_type, return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        rank = np.empty(len(order), np.min_scalar_type(max(len(order) - 1, 0)))
        rank[order] = np.arange(len(order))
        begun = first < graph.instance_nodes[0] if len(graph.instance_nodes) else first
        outputs = graph.outputs
        return PackedGraph(
            types=tuple([self._type(k) for k in found[order].tolist()]),
            first_types=int(np.count_nonzero(begun)),
            node_type=rank[places],
            operands=graph.operands,
            external_rows=graph.external_rows,
            externals=tuple(
                [(self._kind(kind), pool) for kind, pool in graph.externals.items()]
            ),
            tree=self._tree(outputs.tree),
            columns=outputs.columns,
            lengths=outputs.lengths,
            instance_nodes=graph.instance_nodes,
            num_values=graph.num_values,
        )

    def _type(self, type_id: int) -> bytes:
        known = self._types.get(type_id)
        if known is None:
            found = portable(self._table.types[type_id], self._table.avals)
            known = pickle.dumps(found, _PROTOCOL)
            self._types[type_id] = known
        return known

    def _kind(self, kind: int) -> bytes:
        known = self._kinds.get(kind)
        if known is None:
            known = pickle.dumps(self._table.avals[kind], _PROTOCOL)
            self._kinds[kind] = known
        return known

    def _tree(self, tree: OutputTree) -> bytes:
        known = self._trees.get(tree)
        if known is None:
            kinds: dict[int, int] = {}
            places = tree.renumber(lambda kind: kinds.setdefault(kind, len(kinds)))
            avals = [self._table.avals[kind] for kind in kinds]
            known = pickle.dumps((places.skeleton, avals), _PROTOCOL)
            self._trees[tree] = known
        return known


class GraphUnpacker:
    """Reads packed recordings into a table of types; one thread at a time.

    Args:
        types: The table, to which unknown types are added.
    """

    def __init__(self, types: TypeTable) -> None:
        self.table = types
        self._types: dict[bytes, int] = {}
        self._kinds: dict[bytes, int] = {}
        self._trees: dict[bytes, OutputTree] = {}

    def unpack(self, packed: PackedGraph) -> DataflowGraph:
        """Reads a recording.

        Args:
            packed: The result of `GraphPacker.pack`, in this process or another one.

        Returns:
            The recording, with types of this table; its arrays are those of `packed`.

        Raises:
            PickleError: A cell cannot be imported here, or it returns other shapes,
                dtypes or structure than where it was recorded.
        """
        first = packed.first_types
        types = [self._type(each) for each in packed.types[:first]]
        tree = self._tree(packed.tree)
        types += [self._type(each) for each in packed.types[first:]]
        return DataflowGraph(
            types=self.table,
            node_type=np.array(types, np.int32)[packed.node_type],
            operands=packed.operands,
            external_rows=packed.external_rows,
            externals={self._kind(kind): pool for kind, pool in packed.externals},
            outputs=Outputs(tree, packed.columns, packed.lengths),
            instance_nodes=packed.instance_nodes,
            num_values=packed.num_values,
        )

    def _type(self, definition: bytes) -> int:
        known = self._types.get(definition)
        if known is None:
            found = pickle.loads(definition)
            known = self._types[definition] = self.table.take_portable(found)
        return known

    def _kind(self, definition: bytes) -> int:
        known = self._kinds.get(definition)
        if known is None:
            aval = pickle.loads(definition)
            known = self.table.kinds.number(aval.shape, aval.dtype)
            self._kinds[definition] = known
        return known

    def _tree(self, definition: bytes) -> OutputTree:
        known = self._trees.get(definition)
        if known is None:
            skeleton, avals = pickle.loads(definition)
            kinds = [self.table.kinds.number(each.shape, each.dtype) for each in avals]
            tree = OutputTree(skeleton).renumber(kinds.__getitem__)
            known = self.table.trees.setdefault(tree, tree)
            self._trees[definition] = known
        return known
