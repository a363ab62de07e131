"""The dataflow graph of one or more instances, as flat arrays."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from edbatch.graph.flat_graph import flatten
from edbatch.graph.node_type import NodeType
from edbatch.graph.output_tree import Outputs, OutputTree
from edbatch.graph.structure import GraphStructure
from edbatch.graph.type_table import Made, TypeTable
from edbatch.kernel import kernel

MISSING = -1  # in place of a value or pool row: the slot pads a list


class NodeArrays(NamedTuple):
    """Nodes, their operands and their external inputs, for compiled code.

    ``N`` nodes, ``E`` operand slots, ``X`` external slots.

    Attributes:
        node_type: Type of each node.
        operand_start: First operand slot of each node, and the end.
        operands: Value read by each operand slot, or `MISSING`.
        external_start: First external slot of each node, and the end.
        external_rows: Row of a pool read by each external slot, or `MISSING`.
        value_start: First value of each node, and the end.
    """

    node_type: np.ndarray  # [N] int32
    operand_start: np.ndarray  # [N + 1] int32
    operands: np.ndarray  # [E] int32 or int64
    external_start: np.ndarray  # [N + 1] int32
    external_rows: np.ndarray  # [X] int32
    value_start: np.ndarray  # [N + 1] int32


@dataclass(frozen=True, eq=False)
class DataflowGraph:
    """A recorded minibatch of ``B`` instances.

    It has ``N`` nodes of ``T`` types, ``E`` operand slots, ``X`` external slots and
    ``V`` values (output arrays of nodes).

    Nodes are in topological order: an operand's node comes before its readers. The
    slots of a node are adjacent, in the order of its type's slots, and so are its
    values; the type determines how many there are.

    Attributes:
        types: The model's types, shared by all of its graphs.
        node_type: Type of each node.
        operands: Value read by each operand slot, or `MISSING`.
        external_rows: Row read by each external slot in its array kind's pool, or
            `MISSING`.
        externals: External inputs, stacked: array kind to ``[rows, ...]``.
        outputs: The model's result for each instance.
        instance_nodes: Number of nodes of each instance.
        num_values: Number of values, V.
        node_member: Member whose parameters each node reads, if its type has a family;
            None if no type has one, and in recordings.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> def model(params, x):
        ...     return double(params, double(params, x))
        >>> batched = eb.batch(model, params=2.0)
        >>> graph = batched.graph([1.0, 5.0])
        >>> graph.num_nodes, graph.num_instances, graph.instance_nodes.tolist()
        (4, 2, [2, 2])
    """

    types: TypeTable
    node_type: np.ndarray  # [N] int32
    operands: np.ndarray  # [E] int32
    external_rows: np.ndarray  # [X] int32
    externals: dict[int, np.ndarray]
    outputs: Outputs
    instance_nodes: np.ndarray  # [B] int32
    num_values: int
    node_member: np.ndarray | None = None  # [N] int32

    def __repr__(self) -> str:
        """Summary in one line."""
        types = len(np.unique(self.node_type))
        return (
            f"<DataflowGraph of {self.num_instances} instances: {self.num_nodes} nodes"
            f" of {types} types>"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the recorded fields, without the values derived from them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the fields; equal output structures become one object again."""
        outputs, known = state["outputs"], state["types"].trees
        tree = known.setdefault(outputs.tree, outputs.tree)
        self.__dict__.update(state, outputs=replace(outputs, tree=tree))

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return len(self.node_type)

    @property
    def num_instances(self) -> int:
        """Number of instances, B."""
        return len(self.instance_nodes)

    @property
    def num_types(self) -> int:
        """Number of types, T, that were known when this was first read.

        The table may grow while the graph is planned. Everything that is derived for
        the graph by type has this length.
        """
        # If two threads read it first at once, one decides: `setdefault` is atomic.
        found: int = vars(self).setdefault("_num_types", len(self.types))
        return found

    def derived(self, key: Hashable, make: Callable[[list[NodeType]], Made]) -> Made:
        """Returns an object derived from the types, cached as long as the types live.

        Args:
            key: Everything that the object depends on besides these types.
            make: Derives it from the T types; see `TypeTable.derived`.

        Returns:
            The object that was made first for this key and number of types.
        """
        types, count = self.types, self.num_types
        return types.derived((key, count), lambda: make(types.types[:count]))

    @cached_property
    def _starts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return slot_starts(self.node_type, *self.types.counts)

    @property
    def operand_start(self) -> np.ndarray:
        """First operand slot of each node, and the end; ``[N + 1] int32``."""
        return self._starts[0]

    @property
    def external_start(self) -> np.ndarray:
        """First external slot of each node, and the end; ``[N + 1] int32``."""
        return self._starts[1]

    @property
    def value_start(self) -> np.ndarray:
        """First value of each node, and the end; ``[N + 1] int32``."""
        return self._starts[2]

    @property
    def arrays(self) -> NodeArrays:
        """The nodes, their operands and their external inputs, for compiled code."""
        return NodeArrays(
            self.node_type,
            self.operand_start,
            self.operands,
            self.external_start,
            self.external_rows,
            self.value_start,
        )

    @cached_property
    def joinable(self) -> "Joinable":
        """The recording in the form in which it is joined with others."""
        nodes = self.node_type, self.operands, self.external_rows, self.instance_nodes
        outputs = self.outputs.columns, self.outputs.lengths
        avals = {kind: self.types.kinds.pool_aval(kind) for kind in self.externals}
        flat = flatten(nodes, self.num_values, self.externals, avals, *outputs)
        return Joinable(self.types, self.outputs.tree, flat, self.externals)

    @cached_property
    def structure(self) -> GraphStructure:
        """Types, edges and instances, as read by scheduling."""
        return self._structure_of(operand_nodes(self.value_start, self.operands))

    def _structure_of(self, operand_node: np.ndarray) -> GraphStructure:
        return GraphStructure(
            type_keys=self.types.keys,
            node_type=self.node_type,
            operand_start=self.operand_start,
            operand_node=operand_node,
            instance_nodes=self.instance_nodes,
        )

    def set_structure(
        self,
        starts: tuple[np.ndarray, np.ndarray, np.ndarray],
        operand_node: np.ndarray,
    ) -> None:
        """Stores data derived from the graph that was computed together with it.

        Args:
            starts: As from `slot_starts`.
            operand_node: As from `operand_nodes`.
        """
        vars(self)["_starts"] = starts
        vars(self)["structure"] = self._structure_of(operand_node)


class Joinable(NamedTuple):
    """The parts of a graph that joining recordings reads, in one place.

    Attributes:
        types: As in `DataflowGraph`.
        tree: The structure of the outputs.
        flat: All integers; see `edbatch.graph.flat_graph`.
        externals: As in `DataflowGraph`.
    """

    types: TypeTable
    tree: OutputTree
    flat: np.ndarray  # [n] int32
    externals: dict[int, np.ndarray]


@kernel(nogil=False)
def slot_starts(
    node_type: np.ndarray,
    num_operands: np.ndarray,
    num_externals: np.ndarray,
    num_outputs: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the first slots and values of nodes, in compiled code.

    Args:
        node_type: Type of each node; ``[N] int32``.
        num_operands: Operand slots of each type; ``[T] int32``.
        num_externals: External slots of each type.
        num_outputs: Outputs of each type.

    Returns:
        First operand slot, external slot and value of each node, and the end; ``[N + 1]
        int32`` each.
    """
    n = len(node_type)
    operand = np.zeros(n + 1, np.int32)
    external = np.zeros(n + 1, np.int32)
    value = np.zeros(n + 1, np.int32)
    for v in range(n):
        t = node_type[v]
        operand[v + 1] = operand[v] + num_operands[t]
        external[v + 1] = external[v] + num_externals[t]
        value[v + 1] = value[v] + num_outputs[t]
    return operand, external, value


@kernel
def operand_nodes(value_start: np.ndarray, operands: np.ndarray) -> np.ndarray:
    """Finds the node that each operand slot reads, in compiled code.

    Args:
        value_start: First value of each node, and the end; ``[N + 1] int32``.
        operands: Value read by each slot, negative where there is none; ``[E] int32``.

    Returns:
        The nodes, negative where there is none; ``[E] int32``.
    """
    n = len(value_start) - 1
    node_of = np.empty(value_start[n], np.int32)
    for v in range(n):
        for value in range(value_start[v], value_start[v + 1]):
            node_of[value] = v
    nodes = np.empty(len(operands), np.int32)
    for e in range(len(operands)):
        nodes[e] = node_of[operands[e]] if operands[e] >= 0 else operands[e]
    return nodes
