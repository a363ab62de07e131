"""Weight-gradient sites: gradients of large parameters from tapes.

An equation that mixes a parameter with values of a batch row, such as a product or the
lookup of a table's row, is a *weight-gradient site*: the parameter's cotangent is a sum
over all batch rows. Summing it chunk by chunk would write an array of the parameter's
size for every chunk. So the backward pass records each site's inputs and the cotangents
of its outputs on *tapes* with one row per batch row, and one contraction over the tapes
at the end gives the parameter's cotangent. Small parameters, such as biases, are summed
chunk by chunk: their tapes would be larger.

Tapes are as long as a program's bucket allows. The contraction of a product goes over
blocks of rows and stops with the rows in use; that of a table, whose cotangent is as
large as the table, runs once.

Where cells compute in half a precision, the rows of a table are summed in that of the
parameter, or float32; products of a block of rows are rounded, and summed in float32.

Gain (docs/results-training.md, "Value and gradient"): that of 64 trees at hidden 128
takes 3.06 times the forward pass; *exact*, which adds up weights' gradients batch by
batch, 5.42.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from edbatch.cell.binding_time import Split
from edbatch.cell.cell_graph import Node
from edbatch.cell.jaxpr import (
    Atom,
    JaxprEqn,
    Var,
    as_function,
    dtype_of,
    inner_bodies,
    is_float,
    name_of,
    read_dot,
    shape_of,
    size_of,
    variables,
)
from edbatch.cell.moved_values import sources_of
from edbatch.cell.primitives import (
    CUSTOM_VJP,
    DOT_GENERAL,
    LOOKUPS,
    STOP_GRADIENT,
    WHILE,
)
from edbatch.cell.rows import first_true, keep_rows, slice_rows, take_rows, zero_unless
from edbatch.cell.stacks import Stacks
from edbatch.cell.summation import sum_dtype, zeros_for_sum
from edbatch.cell.table_lookup import TableLookup, table_lookup
from edbatch.cell.tapes import TAPE_BLOCK, Tapes, tape_rows
from edbatch.cell.wide_casts import casts_of

Values = dict[Var, Any]


class Constant(Protocol):
    """Computes the values that depend on parameters alone."""

    def __call__(self, packed: Sequence[Array], /, *, wide: bool = False) -> Values:
        """Computes them, without casts to half a precision if `wide`."""


# A parameter is small if it has at most so many times the elements of its equation's
# outputs for one batch row.
_SMALL = 4

# Rows per iteration of a product's contraction: most iterations take the many, the rest
# is done in iterations of fewer and fewer. Blocks of 32 after those of 128 save 4 % of
# the gradient of 64 trees at hidden 128, 1 % at 256.
_BLOCKS = (1024, TAPE_BLOCK, 32)

# Rows of a block of one member of a family, at least.
_LEAST_BLOCK = 8


@dataclass(frozen=True, eq=False)
class Site:
    """A weight-gradient site.

    Attributes:
        eqn: The equation.
        inputs: Those of its inputs that depend on the batch row.
        outputs: Its outputs, all floating.
        positions: The parameters that its other inputs depend on.
        evaluate: Its outputs, from the values of all its inputs.
        taped: What its tape holds: the inputs, or what they are made of.
        move: What makes the inputs of that, one step after the other.
    """

    eqn: JaxprEqn
    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    positions: frozenset[int]
    evaluate: Callable[[Values], Values]
    taped: tuple[Var, ...]
    move: tuple[Callable[[Values], Values], ...] = ()

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product."""
        return name_of(self.eqn) == DOT_GENERAL

    @property
    def sums_in_half(self) -> bool:
        """Whether JAX would sum the rows that it looks up in half a precision."""
        if name_of(self.eqn) not in LOOKUPS or not variables(self.eqn.invars[:1]):
            return False
        dtype = dtype_of(self.eqn.invars[0])
        return self.eqn.invars[0] not in self.inputs and sum_dtype(dtype) != dtype

    def run(self, values: Values, inputs: Sequence[Array]) -> list[Array]:
        """Computes its outputs.

        Args:
            values: Values that do not depend on the batch row.
            inputs: As many arrays as `inputs`.

        Returns:
            As many arrays as `outputs`.
        """
        found = self.evaluate(values | dict(zip(self.inputs, inputs, strict=True)))
        return [found[var] for var in self.outputs]

    def run_from_tape(self, values: Values, taped: Sequence[Array]) -> list[Array]:
        """As `run`, of arrays as `taped` says."""
        values = values | dict(zip(self.taped, taped, strict=True))
        for step in self.move:
            values |= step(values)
        return self.run(values, [values[var] for var in self.inputs])


def evaluator(
    eqn: JaxprEqn, used: Collection[Var]
) -> tuple[list[Var], Callable[[Values], Values]]:
    """Makes an equation ready to be evaluated.

    Args:
        eqn: The equation.
        used: The variables whose values matter.

    Returns:
        The variables that it reads, and the function from values to those of its
        outputs that matter.
    """
    inputs = list(dict.fromkeys(variables(eqn.invars)))
    outputs = [var for var in eqn.outvars if var in used]
    function = as_function(inputs, [eqn], outputs)

    def evaluate(values: Values) -> Values:
        found = function(*(values[var] for var in inputs))
        return dict(zip(outputs, found, strict=True))

    return inputs, evaluate


class Sites:
    """The weight-gradient sites of a cell.

    Args:
        split: The cell, split where parameters are known.
        of_row: The variables that depend on the batch row.
        evaluate: The evaluator of each equation of the run-time partition, by identity.
        used: The variables whose values matter.
        least_contraction: Products that contract fewer elements are no sites.

    Attributes:
        sites: The sites, in the order in which they run.
        direct: Positions of the parameters that are read elsewhere, too.
        by_row: Those of them in half a precision that are small wherever they are: XLA
            may sum the rows' cotangents in it, too, so each row gets its own.
    """

    def __init__(
        self,
        split: Split,
        of_row: Collection[Var],
        evaluate: dict[int, Callable[[Values], Values]],
        used: Collection[Var],
        least_contraction: float,
    ) -> None:
        self._of_row = of_row
        self._least_contraction = least_contraction
        self._tables_of = [
            casts_of(each, split.precomputed) for each in split.graph.parameters
        ]
        self._sources = _sources(split)
        self.sites: list[Site] = []
        direct: set[int] = set(self._positions(split.graph.outputs))
        large: set[int] = set()
        equations = _equations(split.run_time)
        assert len(equations) == len(split.run_time), "a traced cell has no others"
        constants = _equations(split.precomputed)
        for eqn in equations:
            positions = self._positions(eqn.invars)
            outputs = tuple(var for var in eqn.outvars if var in used)
            if name_of(eqn) == STOP_GRADIENT or not positions:
                continue
            if self._is_taped(eqn, outputs):
                inputs = tuple(
                    dict.fromkeys(v for v in variables(eqn.invars) if v in of_row)
                )
                taped = inputs
                move: tuple[Callable[[Values], Values], ...] = ()
                if name_of(eqn) == DOT_GENERAL:
                    is_of_row = of_row.__contains__
                    taped, moves = sources_of(inputs, equations, is_of_row, constants)
                    move = tuple(evaluate[id(each)] for each in moves)
                own = eqn, inputs, outputs, positions, evaluate[id(eqn)], taped, move
                self.sites.append(Site(*own))
            else:
                direct |= positions
                if not self._is_small(eqn, outputs):
                    large |= positions
        self.direct = tuple(sorted(direct))
        halves = {
            k
            for k in direct
            for each in self._tables_of[k]
            if sum_dtype(dtype_of(each)) != dtype_of(each)
        }
        self.by_row = frozenset(halves - large)
        self._products = [k for k, each in enumerate(self.sites) if each.is_product]
        self._others = [k for k, each in enumerate(self.sites) if not each.is_product]

    def _positions(self, atoms: Iterable[Atom]) -> frozenset[int]:
        """Positions of the floating parameters that some atoms depend on."""
        none: frozenset[int] = frozenset()
        return none.union(*(self._sources.get(v, none) for v in variables(atoms)))

    def _is_taped(self, eqn: JaxprEqn, outputs: Sequence[Var]) -> bool:
        """Whether an equation that reads parameters is a site."""
        if not any(var in self._of_row for var in variables(eqn.invars)):
            return False
        small = self._is_small(eqn, outputs)
        recomputed = (
            name_of(eqn) == DOT_GENERAL and _contracted(eqn) < self._least_contraction
        )
        # custom_vjp may return nonzero for padding rows, and while_loop is not
        # reverse-differentiable: neither is taped.
        untaped = contains(eqn, CUSTOM_VJP) or contains(eqn, WHILE)
        return not (small or recomputed or untaped) and all(map(is_float, outputs))

    def _is_small(self, eqn: JaxprEqn, outputs: Sequence[Var]) -> bool:
        """Whether an equation's parameters are not much larger than its outputs."""
        parameters = [v for v in eqn.invars if self._positions([v])]
        return sum(map(size_of, parameters)) <= _SMALL * sum(map(size_of, outputs))

    def new_mask(self, rows: int) -> Array | None:
        """Returns a tape of the rows in use; None if no site needs it."""
        return jnp.zeros(tape_rows(rows), jnp.bool) if self._others else None

    def new_owners(self, rows: int, members: int) -> Array:
        """Returns a tape of the members whose parameters rows read; none has one."""
        return jnp.full(tape_rows(rows), members, jnp.int32)

    def lookups(self, parameter: int) -> list[TableLookup] | None:
        """Returns the sites that look up rows of a parameter.

        Args:
            parameter: Its position.

        Returns:
            The sites; None if the parameter is read otherwise, too.
        """
        if parameter in self.direct:
            return None
        tables, found = self._tables_of[parameter], []
        for k, site in enumerate(self.sites):
            if parameter not in site.positions:
                continue
            lookup = table_lookup(k, site.eqn, tables, site.inputs)
            if lookup is None:
                return None
            found.append(lookup)
        return found

    def contract(
        self,
        packed: Sequence[Array],
        constant: Constant,
        inputs: Tapes,
        outputs_bar: Tapes,
        mask: Array | None,
        used: Array | None,
        left_out: Collection[int] = (),
    ) -> dict[int, Array]:
        """Computes the cotangents of the parameters from the tapes.

        Args:
            packed: The parameters.
            constant: Computes the values that depend on parameters alone; without
                casts to half a precision if its second argument says so.
            inputs: The inputs of each site; zero in rows not in use.
            outputs_bar: The cotangents of its outputs, likewise.
            mask: Which rows are in use, as `new_mask` made it.
            used: How many rows are in use, a scalar; None to contract all at once,
                without a loop whose iterations the host does not know.
            left_out: Sites that are not contracted.

        Returns:
            Cotangents of parameters by position, without their direct readers' part.
        """
        found: dict[int, Array] = {}
        pull = partial(self._pull, packed, constant)
        if mask is not None:
            # An equation may have no slope at zero: rows not in use repeat the first
            # that is.
            others = [k for k in self._others if k not in left_out]
            own = {k: inputs[k] for k in others}
            own = keep_rows(mask, first_true(mask), own)
            bars = pull(others, own, outputs_bar)
            found = {k: jnp.where(mask.any(), bar, 0) for k, bar in bars.items()}
        if not self._products:
            return found
        if used is None:
            every = pull(self._products, dict(enumerate(inputs)), outputs_bar)
            for k, each in every.items():
                found[k] = found[k] + each if k in found else each
            return found
        sums = {k: zeros_for_sum(packed[k]) for k in self._parameters(self._products)}
        done = jnp.int32(0)
        rows = len(jax.tree.leaves(inputs)[0])
        for size in _block_sizes(rows):
            end = used // size if size > _BLOCKS[-1] else -(-used // size)

            def add(
                block: Array, sums: dict[int, Array], size: int = size
            ) -> dict[int, Array]:
                part = partial(slice_rows, first=block * size, width=size)
                some = jax.tree.map(part, (inputs, outputs_bar))
                more = pull(self._products, dict(enumerate(some[0])), some[1])
                return {k: sums[k] + more[k].astype(sums[k].dtype) for k in sums}

            sums = lax.fori_loop(done // size, end, add, sums)
            done = end * size
        for k, each in sums.items():
            found[k] = found[k].astype(each.dtype) + each if k in found else each
        return found

    def contract_members(
        self,
        packed: Stacks,
        constant: Constant,
        inputs: Tapes,
        outputs_bar: Tapes,
        owner: Array,
    ) -> dict[int, Array]:
        """Computes the cotangents of the parameters of a family from the tapes.

        Rows are sorted by member, and blocks of one member's are contracted and added
        to its cotangent. What a block lacks repeats its last row, as in `contract`.

        Args:
            packed: The parameters.
            constant: As for `contract`, of one member's parameters.
            inputs: As for `contract`.
            outputs_bar: As for `contract`.
            owner: The member of each row; the number of members in rows not in use.

        Returns:
            As `contract`; stacked as the parameters are.
        """
        if not self.sites:
            return {}
        chosen = range(len(self.sites))
        positions = self._parameters(chosen)
        sums = Stacks(
            [zeros_for_sum(packed.arrays[k]) for k in positions],
            [packed.stacked[k] for k in positions],
        )
        size = next(
            len(array)
            for array, is_stacked in zip(*packed, strict=True)
            if is_stacked and array is not None
        )
        order = jnp.argsort(owner).astype(jnp.int32)
        count = jnp.zeros(size + 1, jnp.int32).at[owner].add(1)[:size]
        end = jnp.cumsum(count, dtype=jnp.int32)
        width = _member_block(len(owner), size)
        blocks = -(-count // width)
        last_block = jnp.cumsum(blocks, dtype=jnp.int32)

        def add(block: Array, found: list[Array]) -> list[Array]:
            member = (last_block <= block).sum(dtype=jnp.int32)
            number = block - last_block[member] + blocks[member]
            place = end[member] - count[member] + number * width
            place += jnp.arange(width, dtype=jnp.int32)
            rows = order[jnp.minimum(place, end[member] - 1)]
            own, bars = jax.tree.map(
                lambda tape: take_rows(tape, rows), (inputs, outputs_bar)
            )
            bars = zero_unless(place < end[member], bars)
            one = packed.take(member)
            more = self._pull(one, constant, chosen, dict(enumerate(own)), bars)
            return Stacks(found, sums.stacked).add(member, [more[k] for k in positions])

        found = lax.fori_loop(0, last_block[-1], add, sums.arrays)
        return dict(zip(positions, found, strict=True))

    def _parameters(self, chosen: Sequence[int]) -> list[int]:
        """Positions of the parameters of some sites."""
        return sorted(frozenset().union(*(self.sites[k].positions for k in chosen)))

    def _pull(
        self,
        packed: Sequence[Array],
        constant: Constant,
        chosen: Sequence[int],
        inputs: dict[int, list[Array]],
        outputs_bar: Tapes,
    ) -> dict[int, Array]:
        """Contracts the tapes of some sites."""
        found: dict[int, Array] = {}
        for wide in (False, True):
            own = [k for k in chosen if self.sites[k].sums_in_half == wide]
            if not own:
                continue
            arrays = [_widened(each) for each in packed] if wide else packed
            values = partial(constant, wide=wide)
            bars = self._pull_alike(arrays, values, own, inputs, outputs_bar)
            for k, bar in bars.items():
                found[k] = found[k].astype(bar.dtype) + bar if k in found else bar
        return found

    def _pull_alike(
        self,
        packed: Sequence[Array],
        constant: Callable[[Sequence[Array]], Values],
        chosen: Sequence[int],
        inputs: dict[int, list[Array]],
        outputs_bar: Tapes,
    ) -> dict[int, Array]:
        """Contracts the tapes of sites whose sums have the dtypes of `packed`."""
        positions = self._parameters(chosen)

        def run(arrays: list[Array]) -> list[list[Array]]:
            own = list(packed)
            for k, array in zip(positions, arrays, strict=True):
                own[k] = array
            values = constant(own)
            return [
                jax.vmap(partial(self.sites[k].run_from_tape, values))(inputs[k])
                for k in chosen
            ]

        outputs, pull = jax.vjp(run, [packed[k] for k in positions])
        bars = [outputs_bar[k] for k in chosen]
        bars = jax.tree.map(lambda bar, own: bar.astype(own.dtype), bars, outputs)
        (found,) = pull(bars)
        return dict(zip(positions, found, strict=True))


def _equations(nodes: Iterable[Node]) -> list[JaxprEqn]:
    return [each for each in nodes if isinstance(each, JaxprEqn)]


def _widened(array: Any) -> Any:
    """An array, if it is one, in the dtype that its cotangents are summed in."""
    return None if array is None else array.astype(sum_dtype(array.dtype))


def _sources(split: Split) -> dict[Var, frozenset[int]]:
    """Positions of the floating parameters that each precomputed variable reads."""
    none: frozenset[int] = frozenset()
    found = {
        var: frozenset([k] if is_float(var) else [])
        for k, var in enumerate(split.graph.parameters)
    }
    for node in split.precomputed:
        stops = isinstance(node, JaxprEqn) and name_of(node) == STOP_GRADIENT
        read = [] if stops else [found.get(v, none) for v in variables(node.invars)]
        found |= dict.fromkeys(node.outvars, none.union(*read))
    return found


def _contracted(eqn: JaxprEqn) -> int:
    """Returns how many elements a product contracts for each of its result."""
    dot = read_dot(eqn)
    assert dot is not None, "it is a product"
    return math.prod(shape_of(eqn.invars[0])[axis] for axis in dot.dims[0])


def _block_sizes(rows: int) -> list[int]:
    """Rows of the blocks of a contraction over tapes of so many rows, largest first.

    No block is a whole tape: XLA would take its product out of the loop and compute it
    even where the loop has no iterations.
    """
    return [each // 2 if each == rows else each for each in _BLOCKS if each <= rows]


def _member_block(rows: int, members: int) -> int:
    """Rows of a block of one member: about as many as it has, at most a whole block."""
    mean = max(1, rows // members)
    return min(TAPE_BLOCK, max(_LEAST_BLOCK, 1 << (mean - 1).bit_length()))


def contains(eqn: JaxprEqn, primitive: str) -> bool:
    """Tells whether an equation is of a primitive, or calls one that is."""
    return name_of(eqn) == primitive or any(
        contains(each, primitive)
        for body in inner_bodies(eqn)
        for each in body.equations
    )
