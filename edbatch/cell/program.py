"""The cells of a program, each in a parameter-time and a run-time partition.

`pack` computes the values that depend on parameters only, once per call of the program,
outside its loops. Packed cells (see `packed_cell`) also merge parameters there. `run`
computes the rest, for one batch row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import use_abstract_mesh

from edbatch.cell.cell_graph import CellGraph, count_uses
from edbatch.cell.jaxpr import as_function, equations_of
from edbatch.cell.packed_cell import pack_graph
from edbatch.cell.rows_of import rows_of
from edbatch.cell.rules_of_parameters import differentiated_graph, has_rules_of_rows
from edbatch.cell.same_form import Form, form_of
from edbatch.cell.type_call import NO_MESH, trace_settings, traced_type
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_checks import check_stored
from edbatch.graph.type_table import TypeTable
from edbatch.target import Target, choose_target

Packed = tuple[Array, ...]


class CellProgram(Protocol):
    """The program of the cell of one type."""

    def pack(self, params: Any) -> Packed:
        """Computes the values that depend on parameters only."""

    def run(
        self,
        packed: Packed,
        operands: list[Array],
        externals: list[Array],
        masks: list[Array],
    ) -> list[Array]:
        """Runs one batch row; inputs as for `CallTemplate.call`."""

    @property
    def rows(self) -> Callable[..., list[Array]]:
        """`run` on many rows; takes the number of rows, then the same arguments."""


def cell_program(
    node_type: NodeType,
    types: TypeTable,
    packing: bool,
    target: Target | None = None,
    differentiated: bool = False,
) -> CellProgram:
    """Returns the cell of a type, packed or as written.

    Args:
        node_type: The type.
        types: The type's table.
        packing: Whether to pack the cell; see `packed_cell`.
        target: The kind of device that runs it; None for `choose_target`.
        differentiated: Whether its gradient is taken; see `rules_of_parameters`.

    Returns:
        The cell; the same object for the lifetime of the table.
    """
    own = choose_target() if target is None else target
    differentiated = differentiated and has_rules_of_rows(node_type, types)

    def make() -> CellProgram:
        check_stored(types, node_type)
        form = form_of(node_type, types)
        if form.first is not node_type:
            first = cell_program(form.first, types, packing, own, differentiated)
            return OfForm(form, first)
        with use_abstract_mesh(NO_MESH):
            graph, _ = traced_type(node_type, types)
            if differentiated:
                graph = differentiated_graph(node_type, types)
            return pack_graph(graph, own) if packing else PlainCell(graph)

    key = (cell_program, node_type, packing, own, differentiated, trace_settings())
    return types.derived(key, make)


@dataclass(frozen=True, eq=False)
class OfForm:
    """The cell of a type that runs the program of its form's first type.

    Attributes:
        form: The form.
        program: The cell of the first type.
    """

    form: Form
    program: CellProgram

    def pack(self, params: Any) -> Packed:
        """Computes the values that depend on parameters only."""
        return self.program.pack(self.form.arranged(params))

    def run(
        self,
        packed: Packed,
        operands: list[Array],
        externals: list[Array],
        masks: list[Array],
    ) -> list[Array]:
        """Runs one batch row."""
        return self.program.run(packed, operands, externals, masks)

    @property
    def rows(self) -> Callable[..., list[Array]]:
        """Runs many batch rows."""
        return self.program.rows


class PlainCell:
    """A cell as written.

    Args:
        graph: The cell.
    """

    def __init__(self, graph: CellGraph) -> None:
        read = count_uses(graph)
        self._used = [k for k, each in enumerate(graph.parameters) if each in read]
        self._function = as_function(
            [*(graph.parameters[k] for k in self._used), *graph.inputs],
            equations_of(graph.nodes),
            graph.outputs,
            graph.constants,
        )

    def pack(self, params: Any) -> Packed:
        """Returns the parameters that the cell reads."""
        leaves = jax.tree.leaves(params)
        return tuple(leaves[k] for k in self._used)

    def run(
        self,
        packed: Packed,
        operands: list[Array],
        externals: list[Array],
        masks: list[Array],
    ) -> list[Array]:
        """Runs one batch row; inputs as for `CallTemplate.call`."""
        inputs = jax.tree.leaves((operands, externals, masks))
        return list(self._function(*packed, *inputs))

    @cached_property
    def rows(self) -> Any:
        """As `CellProgram.rows`."""
        return rows_of(self.run)


def run_rows(
    cell: CellProgram,
    width: int,
    packed: Packed,
    operands: list[Array],
    externals: list[Array],
    masks: list[Array],
) -> list[Array]:
    """Runs a cell on every batch row.

    Args:
        cell: The cell.
        width: Number of rows; needed for cells of parameters only, which read no array
            with rows.
        packed: The result of `CellProgram.pack`, shared by all rows.
        operands: One ``[width, ...]`` array per operand group.
        externals: One array per external group.
        masks: One array per padded argument.

    Returns:
        One ``[width, ...]`` array per output.
    """
    outputs = cell.rows(width, packed, operands, externals, masks)
    return [jnp.asarray(each) for each in outputs]
