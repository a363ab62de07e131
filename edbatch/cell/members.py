"""Cells that read the parameters of one family member per chunk.

All members share the program of the family's first type. The packed arrays are computed
from stacked parameters, ``[G, ...]``, and a chunk takes its member's part by one slice
per array. So no row gathers its own matrix, and one loop is compiled for all layers of
a stack.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax import Array

from edbatch.cell.binding_time import BindingTime, binding_times
from edbatch.cell.cell_graph import CellGraph, count_uses, trace_cell
from edbatch.cell.jaxpr import Var, is_operation, num_bytes_of, variables
from edbatch.cell.program import CellProgram, Packed
from edbatch.cell.stacks import Stacks, stack
from edbatch.cell.type_call import traced_type
from edbatch.graph.family import Family
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable

_LOOKUPS = ("gather", "dynamic_slice")


@dataclass(frozen=True, eq=False)
class MemberCell:
    """The packed parameters of a cell's program for all members of a family.

    Attributes:
        cell: The program of the first type.
        family: The family.
        stacked: Which packed arrays differ between members; the others are not stacked.
    """

    cell: CellProgram
    family: Family
    stacked: tuple[bool, ...]

    def pack(self, params: Any) -> Packed:
        """Computes the values that depend on parameters only.

        Args:
            params: The model's parameters.

        Returns:
            As `CellProgram.pack`; stacked arrays are ``[G, ...]``.
        """
        leaves, treedef = jax.tree.flatten(params)
        family = self.family
        stacks = family.stacks(leaves, stack)

        def of_member(own: Sequence[Array]) -> Packed:
            parts = list(leaves)
            for k, array in zip(family.leaves, own, strict=True):
                parts[k] = array
            return self.cell.pack(jax.tree.unflatten(treedef, parts))

        axes = tuple(0 if each else None for each in self.stacked)
        packed: Packed = jax.vmap(of_member, out_axes=axes)(stacks)
        return packed

    def map(
        self, function: Callable[[Packed], list[Array | None]], packed: Packed
    ) -> "Stacks":
        """Applies a function to each member's packed arrays.

        Args:
            function: From the packed arrays of one member to arrays; pure JAX.
            packed: The packed arrays of all members, from `pack`.

        Returns:
            The function's results for all members.
        """
        specs = tuple(
            jax.ShapeDtypeStruct(
                each.shape[1:] if is_stacked else each.shape, each.dtype
            )
            for each, is_stacked in zip(packed, self.stacked, strict=True)
        )
        found = [each is not None for each in jax.eval_shape(function, specs)]

        def present(own: Packed) -> list[Any]:
            return [each for each in function(own) if each is not None]

        graph, _ = trace_cell(present, specs, ())
        pairs = zip(graph.parameters, self.stacked, strict=True)
        reached = _reached(graph, [var for var, is_stacked in pairs if is_stacked])
        axes = [0 if var in reached else None for var in graph.outputs]
        own_axes = (tuple(0 if each else None for each in self.stacked),)
        arrays: Any = []
        if any(self.stacked) and axes:
            arrays = jax.vmap(present, own_axes, axes)(packed)
        elif axes:  # nothing read here differs between members
            arrays = present(packed)
        rows = iter(zip(arrays, axes, strict=True))
        both = [next(rows) if each else (None, None) for each in found]
        return Stacks([array for array, _ in both], [axis == 0 for _, axis in both])

    def take(self, arrays: Sequence[Any], member: Array) -> Packed:
        """Takes a member's packed arrays.

        Args:
            arrays: The packed arrays of all members, from `pack`.
            member: The member, a scalar.

        Returns:
            The packed arrays of the member.
        """
        return tuple(Stacks(list(arrays), list(self.stacked)).take(member))


def member_cell(cell: CellProgram, types: TypeTable, family: Family) -> MemberCell:
    """Returns a cell's program for all members of a family.

    Args:
        cell: The program of the first type.
        types: The table of the types.
        family: The family.

    Returns:
        The program; the same object for the lifetime of the table.
    """

    def make() -> MemberCell:
        graph, _ = trace_cell(
            lambda params: cell.pack(params), family.spec(types.params_spec), ()
        )
        reached = _reached(graph, [graph.parameters[k] for k in family.leaves])
        return MemberCell(cell, family, tuple(v in reached for v in graph.outputs))

    return types.derived((member_cell, cell, family), make)


class Copies(NamedTuple):
    """Bytes copied for a family that separate types would not copy.

    Attributes:
        stack: The stacked parameters of all members. They are copied in every traced
            call; otherwise they stay in memory as long as the parameters live.
        tables: The parameters of one member in which nodes look up rows. A separate
            type would read a few rows; a chunk of a family copies the whole tables.
    """

    stack: int
    tables: int


def count_copies(node_type: NodeType, types: TypeTable, family: Family) -> Copies:
    """Counts the bytes that a family would copy.

    Args:
        node_type: The first type.
        types: The type's table.
        family: The family.

    Returns:
        The bytes.
    """
    graph, _ = traced_type(node_type, types)
    read = count_uses(graph)
    leaves = jax.tree.leaves(types.params_spec)
    stack = sum(
        math.prod(leaves[k].shape) * leaves[k].dtype.itemsize
        for first, sources in zip(family.leaves, family.sources, strict=False)
        if graph.parameters[first] in read
        for k in sources
    )
    return Copies(stack, _table_bytes(graph, family))


def _table_bytes(graph: CellGraph, family: Family) -> int:
    """The bytes of one member's lookup tables, each table counted once."""
    reached = _reached(graph, [graph.parameters[k] for k in family.leaves])
    times = binding_times(graph)
    tables = set()
    for node in graph.nodes:
        if not is_operation(node, _LOOKUPS):
            continue
        table, *indices = node.invars
        if not isinstance(table, Var) or table not in reached:
            continue
        depends = any(times[v] > BindingTime.PARAM for v in variables(indices))
        if depends:
            tables.add(table)
    return sum(map(num_bytes_of, tables))


def _reached(graph: CellGraph, sources: Sequence[Var]) -> set[Any]:
    """The variables that are computed from some of the parameters."""
    found: set[Any] = set(sources)
    for node in graph.nodes:
        if not found.isdisjoint(variables(node.invars)):
            found.update(node.outvars)
    return found
