"""Divides a recorded minibatch into the stages of a hand-written batched program.

A batched program written for one kind of graph computes all nodes that read no other
node (the leaves) in one wide operation, then the inner nodes level by level, and
finally, again in one wide operation, all nodes that no other node reads (the
classifier). The baselines `levels`, `exact` and `scan` are such programs. Hand-written
code also concatenates the matrices of a cell's gates, so the baselines run packed
cells.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from edbatch.cell.program import Packed, cell_program, run_rows
from edbatch.cell.rows import take_rows, write_rows
from edbatch.graph import DataflowGraph, NodeType, TypeTable
from edbatch.graph.node_type import Slots

Rows = np.ndarray | Array
Arenas = Mapping[int, Array]  # array kind -> [rows, ...]; row 0 is zero

ZERO_ROW = 0  # read where a padded list has no element


@dataclass(frozen=True, eq=False)
class Group:
    """``n`` nodes of one type that run together.

    Attributes:
        node_type: Their type.
        nodes: The nodes.
    """

    node_type: NodeType
    nodes: np.ndarray  # [n] int32


@dataclass(frozen=True, eq=False)
class Stages:
    """A minibatch in stages.

    Attributes:
        graph: The graph.
        sources: Nodes that read no other node, one group per type.
        levels: Inner nodes, level by level, one group per type of each level.
        sinks: Nodes of types that no node reads, one group per type.
    """

    graph: DataflowGraph
    sources: tuple[Group, ...]
    levels: tuple[Group, ...]
    sinks: tuple[Group, ...]

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups in execution order."""
        return self.sources + self.levels + self.sinks

    def operands(self, group: Group) -> np.ndarray:
        """Values read by each operand slot of a group; ``[slots, n]``."""
        slots = len(group.node_type.operand_kinds)
        start = self.graph.operand_start[group.nodes]
        return self.graph.operands[start[None] + np.arange(slots)[:, None]]

    def externals(self, group: Group) -> np.ndarray:
        """Pool rows read by each external slot of a group; ``[slots, n]``."""
        slots = len(group.node_type.external_kinds)
        start = self.graph.external_start[group.nodes]
        rows = self.graph.external_rows[start[None] + np.arange(slots)[:, None]]
        return rows + np.int32(1)  # after the zero row

    @cached_property
    def pools(self) -> dict[int, np.ndarray]:
        """External inputs by array kind, preceded by a zero row."""
        return {
            kind: np.concatenate([np.zeros_like(rows[:1]), rows])
            for kind, rows in self.graph.externals.items()
        }


def stage(graph: DataflowGraph) -> Stages:
    """Divides a minibatch into stages.

    Returns:
        The stages. A node of a sink type runs last even if it could run earlier.
    """
    if not graph.num_nodes:
        return Stages(graph, (), (), ())
    structure = graph.structure
    read = np.zeros(len(graph.types), bool)
    present = structure.operand_node[structure.operand_node >= 0]
    read[graph.node_type[present]] = True
    depth = structure.depth
    is_sink = ~read[graph.node_type] & (depth > 0)
    last = int(depth.max(initial=0)) + 1
    level = np.where(is_sink, last, depth)
    order = np.lexsort((graph.node_type, level)).astype(np.int32)
    keys = level[order].astype(np.int64) * len(graph.types) + graph.node_type[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    stages: dict[str, list[Group]] = {"sources": [], "levels": [], "sinks": []}
    for nodes in np.split(order, starts[1:]):
        at = level[nodes[0]]
        name = "sources" if at == 0 else "sinks" if at == last else "levels"
        node_type = graph.types.types[graph.node_type[nodes[0]]]
        stages[name].append(Group(node_type, nodes))
    return Stages(graph, *(tuple(each) for each in stages.values()))


def take(rows_of: Array, rows: Rows) -> Array:
    """Reads rows, as a slice if they are constant and consecutive.

    Args:
        rows_of: ``[R, ...]``.
        rows: Integers below R; a NumPy array is a constant of the program.

    Returns:
        ``rows.shape + rows_of.shape[1:]``.
    """
    if isinstance(rows, np.ndarray) and rows.ndim == 1 and (np.diff(rows) == 1).all():
        return lax.slice_in_dim(rows_of, int(rows[0]), int(rows[0]) + len(rows))
    return take_rows(rows_of, jnp.asarray(rows))


def pack_cells(
    types: TypeTable, node_types: Iterable[NodeType], params: Any
) -> list[Packed]:
    """Packs the parameters of each cell, once per run of a minibatch."""
    cells = (cell_program(each, types, packing=True) for each in node_types)
    return [cell.pack(params) for cell in cells]


def run_nodes(
    types: TypeTable,
    node_type: NodeType,
    packed: Packed,
    arenas: Arenas,
    pools: Arenas,
    operands: Rows,
    externals: Rows,
) -> list[Array]:
    """Runs ``n`` nodes of one type at once.

    Args:
        types: The model's types.
        node_type: The type.
        packed: The packed parameters of the type, from `pack_cells`.
        arenas: Values by array kind.
        pools: External inputs by array kind.
        operands: Arena rows per operand slot, ``[slots, n]``.
        externals: Pool rows per external slot, ``[slots, n]``.

    Returns:
        One ``[n, ...]`` array per output.
    """
    inputs = _read_inputs(node_type, arenas, pools, operands, externals)
    cell = cell_program(node_type, types, packing=True)
    return run_rows(cell, operands.shape[1], packed, *inputs)


def run_node(
    types: TypeTable,
    node_type: NodeType,
    packed: Packed,
    arenas: Arenas,
    pools: Arenas,
    operands: Rows,
    externals: Rows,
) -> list[Array]:
    """Runs one node: `run_nodes` without the node axis, with rows ``[slots]``."""
    inputs = _read_inputs(node_type, arenas, pools, operands, externals)
    found = cell_program(node_type, types, packing=True).run(packed, *inputs)
    return [jnp.asarray(each) for each in found]


def _read_inputs(
    node_type: NodeType, arenas: Arenas, pools: Arenas, operands: Rows, externals: Rows
) -> tuple[list[Array], list[Array], list[Any]]:
    """Reads operands, external inputs and masks."""
    template = node_type.template
    sources = {
        "operand": (arenas, node_type.operand_kinds, template.operands, operands),
        "external": (pools, node_type.external_kinds, template.externals, externals),
    }

    def read(name: str) -> list[Array]:
        source, kinds, groups, rows = sources[name]
        return [
            take(source[kinds[group.slots[0]]], _rows(group, rows)) for group in groups
        ]

    masks = []
    for padding in template.paddings:
        _, _, groups, rows = sources[padding.kind]
        masks.append(_rows(groups[padding.group], rows) != ZERO_ROW)
    return read("operand"), read("external"), masks


def _rows(group: Slots, rows: Rows) -> Rows:
    """Rows read by one argument: ``[n]``, or ``[n, K]`` if it is a padded list."""
    return rows[np.array(group.slots)].T if group.stacked else rows[group.slots[0]]


def write(arenas: Arenas, kind: int, row: Any, rows: Array) -> Arenas:
    """Writes consecutive rows of one arena.

    Args:
        arenas: Values by array kind.
        kind: Array kind of the arena.
        row: The first row.
        rows: ``[n, ...]``.

    Returns:
        The arenas, with the rows written.
    """
    return {**arenas, kind: write_rows(arenas[kind], jnp.int32(row), rows)}


def new_arenas(types: TypeTable, sizes: Mapping[int, int]) -> Arenas:
    """Allocates arenas; only row 0 is cleared."""
    arenas = {}
    for kind, rows in sizes.items():
        aval = types.avals[kind]
        arena = lax.empty((rows, *aval.shape), aval.dtype)
        arenas[kind] = arena.at[ZERO_ROW].set(jnp.zeros(aval.shape, aval.dtype))
    return arenas


def next_power(size: int) -> int:
    """Rounds up to a power of two.

    Example:
        >>> [next_power(size) for size in (1, 2, 3, 64, 65)]
        [1, 2, 4, 64, 128]
    """
    return 1 << (size - 1).bit_length()


def pad_to_power(rows: np.ndarray) -> np.ndarray:
    """Pads the first axis with zeros to a power of two, at least 64.

    Args:
        rows: ``[n, ...]``.

    Returns:
        ``[next_power(max(64, n)), ...]``.
    """
    missing = next_power(max(64, len(rows))) - len(rows)
    return np.pad(rows, ((0, missing),) + ((0, 0),) * (rows.ndim - 1))
