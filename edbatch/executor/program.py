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

_MOST = 0.75  # of all multiply-adds; lattices that have two thirds in wide chunks lose


@dataclass(frozen=True)
class CompileOptions:
    """Options of a program.

    Attributes:
        target: The kind of device that runs it.
        packing: Whether operations inside cells are packed.
        with_keys: Whether cells that take keys get them, or run with their default.
        remat: Whether the backward pass recomputes the outputs of matrix products.
        reuses_rows: Whether values are overwritten once they are not needed any more;
            then there is no gradient.
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
    """The static shape of a program, beside the shapes of a plan's arrays.

    Attributes:
        types: The model's types.
        loops: The loops, in their order.
        arena_rows: (array kind, rows) of each arena.
        type_rows: (type id, rows that its chunks compute at most).
        options: How it is made.
        chunks: Chunks of a minibatch at most, for programs of one switch per chunk; 0
            where that is not known.
    """

    types: TypeTable
    loops: tuple[Loop, ...]
    arena_rows: tuple[tuple[int, int], ...]
    type_rows: tuple[tuple[int, int], ...] = ()
    options: CompileOptions = CompileOptions()
    chunks: int = 0

    def __repr__(self) -> str:
        """Says what it is in one line."""
        arenas = ", ".join(
            f"{rows} x {self.types.avals[k]}" for k, rows in self.arena_rows
        )
        return f"<ProgramShape: {len(self.loops)} loops on arenas {arenas}>"

    def __hash__(self) -> int:
        """Returns the hash, kept because every call of a compiled program needs it."""
        return self._hash

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the hash, which is another one in another process."""
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
        """Returns the options of XLA for its tier, on its target."""
        target = self.options.target
        if self.options.tier == "coarse":
            return dict(target.coarse_options)
        if target.small_product_options and self._has_small_products():
            return dict(target.small_product_options)
        return {}

    def products(self) -> dict[int, float]:
        """Counts the multiply-adds for one row in matrix products, by type."""
        used = sorted({loop.type_id for loop in self.loops})
        return {each: product_work(self._type(each), self.types) for each in used}

    def _has_small_products(self) -> bool:
        """Tells whether no cell has large products, and most run in wide chunks."""
        target, products = self.options.target, self.products()
        widest: dict[int, int] = {}
        for loop in self.loops:
            widest[loop.type_id] = max(widest.get(loop.type_id, 0), loop.width)
        rows = dict(self.type_rows)
        work = {each: rows.get(each, 1) * products[each] for each in products}
        wide = sum(work[each] for each in work if widest[each] >= target.wide_chunk)
        largest = max(products.values(), default=0.0)
        return largest <= target.small_product and wide >= _MOST * sum(work.values())

    def with_options(self, **options: Any) -> "ProgramShape":
        """Returns the program, made in another way.

        Args:
            **options: Fields of `CompileOptions`.
        """
        return replace(self, options=replace(self.options, **options))

    def _type(self, type_id: int) -> NodeType:
        node_type = self.types.types[type_id]
        return node_type if self.options.with_keys else node_type.without_rng()

    def pack(self, params: Any) -> dict[int, Packed]:
        """Computes packed weights, by type."""
        packed = {}
        for type_id, cell in self.packers().items():
            with jax.named_scope(f"{type_name(self.types.types[type_id])}[packed]"):
                packed[type_id] = cell.pack(params)
        return packed

    def packers(self) -> dict[int, CellProgram | MemberCell]:
        """Returns what packs the parameters of each type that runs."""
        packers: dict[int, CellProgram | MemberCell] = dict(self.cells())
        for type_id in packers:
            packers[type_id] = self.members(type_id) or packers[type_id]
        return packers

    def members(self, type_id: int) -> MemberCell | None:
        """Returns the cell of a type whose chunks read a member's parameters each."""
        family = self.types.types[type_id].family
        if family is None:
            return None
        return member_cell(self.cell(type_id), self.types, family)

    def stacked(self, type_id: int, positions: Sequence[int]) -> list[bool]:
        """Tells which packed weights of a type have an entry per member."""
        members = self.members(type_id)
        return [members is not None and members.stacked[k] for k in positions]

    def own(self, type_id: int, packed: Packed, member: Array | None) -> Packed:
        """Returns the packed weights that a chunk reads.

        Args:
            type_id: Its type.
            packed: The packed weights of the type, from `pack`.
            member: Whose parameters it reads; None if its type has no family.

        Returns:
            The packed weights of one cell.
        """
        members = None if member is None else self.members(type_id)
        if members is None or member is None:
            return packed
        return members.take(packed, member)

    def formats(self) -> list[RecordFormat]:
        """Returns the format of each loop's records."""
        return record_formats(self.types.types, self.loops)

    def cells(self) -> dict[int, CellProgram]:
        """Returns the cells that run, by type."""
        used = sorted({loop.type_id for loop in self.loops})
        return {type_id: self.cell(type_id) for type_id in used}
