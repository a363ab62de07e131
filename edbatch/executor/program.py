"""The static shape of a program: loops, arenas and compile options."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import jax
from jax import Array

from edbatch.cell.backward import TapedCell, taped_cell
from edbatch.cell.members import MemberCell, member_cell
from edbatch.cell.program import CellProgram, Packed, cell_program
from edbatch.cell.while_loops import may_not_end
from edbatch.cell.work import product_work
from edbatch.executor.loop_name import type_name
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable
from edbatch.stream.format import RecordFormat, record_formats
from edbatch.stream.loop import Loop
from edbatch.target import CPU, Option, Target

Tier = Literal["fine", "coarse"]

_LEAST_WIDE_SHARE = (
    0.75  # minimum share of multiply-adds in wide chunks; at 2/3 lattices lose
)


@dataclass(frozen=True)
class CompileOptions:
    """Options of a program.

    Attributes:
        target: The kind of device that runs it.
        packing: Whether cells are packed; see `edbatch.cell.packed_cell`.
        with_keys: Whether cells that take random keys get them; otherwise they run with
            the default of that argument.
        remat: Whether the backward pass recomputes the outputs of matrix products.
        reuses_rows: Whether rows of values that are no longer needed are overwritten;
            if so, there is no gradient.
        differentiated: Whether its gradient is taken; see
            `edbatch.cell.rules_of_parameters`.
        tier: "fine": a loop per type, width and set of slices, the fastest program;
            "coarse": one loop body per type, a program that compiles fast.
    """

    target: Target = CPU
    packing: bool = False
    with_keys: bool = True
    remat: bool = False
    reuses_rows: bool = False
    differentiated: bool = False
    tier: Tier = "fine"


@dataclass(frozen=True)
class ProgramShape:
    """The static shape of a program, apart from the shapes of a plan's arrays.

    Attributes:
        types: The model's types.
        loops: The loops, in program order.
        arena_rows: (array kind, rows) of each arena.
        type_rows: (type id, maximum number of rows that its chunks compute).
        options: Compile options.
        chunks: Maximum number of chunks in a minibatch, for programs of one switch per
            chunk; 0 if it is not known.
    """

    types: TypeTable
    loops: tuple[Loop, ...]
    arena_rows: tuple[tuple[int, int], ...]
    type_rows: tuple[tuple[int, int], ...] = ()
    options: CompileOptions = CompileOptions()
    chunks: int = 0

    def __repr__(self) -> str:
        """Summary in one line."""
        arenas = ", ".join(
            f"{rows} x {self.types.avals[k]}" for k, rows in self.arena_rows
        )
        return f"<ProgramShape: {len(self.loops)} loops on arenas {arenas}>"

    def __hash__(self) -> int:
        """Returns the hash, cached because each call of a compiled program needs it."""
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the cached hash, which differs between processes."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def _hash(self) -> int:
        return hash((self.types, self.loops, self.arena_rows, self.type_rows))

    def cell(self, type_id: int) -> CellProgram:
        """Returns the cell of a type."""
        options = self.options
        return cell_program(
            self._type(type_id),
            self.types,
            options.packing,
            options.target,
            options.differentiated,
        )

    def repeats_rows(self, type_id: int) -> bool:
        """Whether padding rows repeat a real row's inputs.

        A while_loop may not terminate on other values.
        """
        return may_not_end(self._type(type_id), self.types)

    def taped_cell(self, type_id: int) -> TapedCell:
        """Returns the cell of a type, for the backward pass."""
        options = self.options
        return taped_cell(
            self._type(type_id),
            self.types,
            options.packing,
            options.remat,
            options.target,
        )

    def compiler_options(self) -> dict[str, Option]:
        """Returns the options for XLA, which depend on target and tier."""
        target = self.options.target
        if self.options.tier == "coarse":
            return dict(target.coarse_options)
        if target.small_product_options and self._has_small_products():
            return dict(target.small_product_options)
        return {}

    def products(self) -> dict[int, float]:
        """Returns the multiply-adds in matrix products for one row, by type."""
        used = sorted({loop.type_id for loop in self.loops})
        return {each: product_work(self._type(each), self.types) for each in used}

    def _has_small_products(self) -> bool:
        """Whether no cell has large products and most work is in wide chunks."""
        target, products = self.options.target, self.products()
        widest: dict[int, int] = {}
        for loop in self.loops:
            widest[loop.type_id] = max(widest.get(loop.type_id, 0), loop.width)
        rows = dict(self.type_rows)
        work = {each: rows.get(each, 1) * products[each] for each in products}
        wide = sum(work[each] for each in work if widest[each] >= target.wide_chunk)
        largest = max(products.values(), default=0.0)
        return largest <= target.small_product and wide >= _LEAST_WIDE_SHARE * sum(
            work.values()
        )

    def with_options(self, **options: Any) -> "ProgramShape":
        """Returns the same program with other compile options.

        Args:
            **options: Fields of `CompileOptions`.
        """
        return replace(self, options=replace(self.options, **options))

    def _type(self, type_id: int) -> NodeType:
        node_type = self.types.types[type_id]
        return node_type if self.options.with_keys else node_type.without_rng()

    def pack(self, params: Any) -> dict[int, Packed]:
        """Computes the packed parameters of each type."""
        packed = {}
        for type_id, cell in self.packers().items():
            with jax.named_scope(f"{type_name(self.types.types[type_id])}[packed]"):
                packed[type_id] = cell.pack(params)
        return packed

    def packers(self) -> dict[int, CellProgram | MemberCell]:
        """Returns the cell that packs the parameters of each type in use."""
        packers: dict[int, CellProgram | MemberCell] = dict(self.cells())
        for type_id in packers:
            packers[type_id] = self.members(type_id) or packers[type_id]
        return packers

    def members(self, type_id: int) -> MemberCell | None:
        """Returns a family's cell, whose chunks read one member each; else None."""
        family = self.types.types[type_id].family
        if family is None:
            return None
        return member_cell(self.cell(type_id), self.types, family)

    def stacked(self, type_id: int, positions: Sequence[int]) -> list[bool]:
        """Returns which packed arrays of a type have one entry per family member."""
        members = self.members(type_id)
        return [members is not None and members.stacked[k] for k in positions]

    def own(self, type_id: int, packed: Packed, member: Array | None) -> Packed:
        """Returns the packed parameters that a chunk reads.

        Args:
            type_id: The chunk's type.
            packed: The packed parameters of the type, from `pack`.
            member: Index of the member whose parameters the chunk reads; None if its
                type has no family.

        Returns:
            The packed parameters: those of the member, if there is one.
        """
        members = None if member is None else self.members(type_id)
        if members is None or member is None:
            return packed
        return members.take(packed, member)

    def formats(self) -> list[RecordFormat]:
        """Returns the format of each loop's records."""
        return record_formats(self.types.types, self.loops)

    def cells(self) -> dict[int, CellProgram]:
        """Returns the cells of all types that have loops, by type."""
        used = sorted({loop.type_id for loop in self.loops})
        return {type_id: self.cell(type_id) for type_id in used}
