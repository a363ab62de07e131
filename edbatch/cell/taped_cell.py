"""A cell whose large parameters get their cotangents from tapes, all at once.

Where an equation of a cell mixes a parameter with values of a lane, such as a product
or the look-up of a row of a table, the parameter's cotangent is a sum over all lanes.
Summing it chunk by chunk writes an array of the parameter's size for every chunk. So
the backward pass writes down, for each such equation, a *site*, what it reads of the
lane and the cotangent of what it gives, on *tapes* with one row per lane; when all
chunks are done, one contraction over the rows gives the parameter's cotangent. Small
parameters, such as biases, are summed chunk by chunk: tapes would be larger.

Tapes are as long as a program's bucket allows. The contraction of a product goes over
blocks of rows and stops with the rows in use; that of a table, whose cotangent is as
large as the table, runs once.

What a site gives is most of a cell's work, so the forward pass writes it on the tape
that will hold its cotangent, and the backward pass does not compute it again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    jaxpr_as_fun,
)
from jax.sharding import use_abstract_mesh

from edbatch.cell.cell_graph import dtype_of, shape_of
from edbatch.cell.derivatives import (
    differentiable_inputs,
    inner_jaxprs,
    may_have_poles,
    moving_variables,
)
from edbatch.cell.program import (
    NO_MESH,
    CellProgram,
    Packed,
    cell_program,
    trace_settings,
)
from edbatch.cell.rows import keep_rows, slice_rows
from edbatch.cell.turned_product import turned_product
from edbatch.graph.node_type import NodeType, input_specs
from edbatch.graph.type_table import TypeTable

Tapes = list[list[Array]]  # per site, arrays with one row per lane

# A parameter is small if it has at most so many times the numbers that its equation
# gives for one lane.
_SMALL = 4

_RULE, _LOOP = "custom_vjp_call", "while"  # names of primitives

# Rows that one turn of a product's contraction takes: most turns take the many, the
# rest is done in turns of the few. Tapes are a multiple of the few.
_BLOCKS = (1024, 128)


@dataclass(frozen=True, eq=False)
class Site:
    """An equation that mixes a large parameter with values of a lane.

    Attributes:
        eqn: The equation.
        reads: Those of its inputs that depend on the lane.
        gives: Its outputs, all floating.
    """

    eqn: JaxprEqn
    reads: tuple[Var, ...]
    gives: tuple[Var, ...]


class TapedCell:
    """A cell's equations, with their sites.

    Args:
        cell: The cell.
        node_type: Its type.
        types: The table that the type is in.
        remat: Whether products have no tapes: what they gave is computed again, and
            cotangents of their matrices are summed chunk by chunk. Less memory.

    Attributes:
        sites: The equations whose parameters are taped.
        direct: Positions of the packed arrays that are read elsewhere, too.
    """

    def __init__(
        self,
        cell: CellProgram,
        node_type: NodeType,
        types: TypeTable,
        *,
        remat: bool = False,
    ) -> None:
        self._remat = remat
        packed = jax.eval_shape(cell.pack, types.params_spec)
        inputs = input_specs(
            node_type.template,
            node_type.operand_kinds,
            node_type.external_kinds,
            types.avals,
        )
        self._operands = len(inputs[0])
        closed = jax.make_jaxpr(cell.run)(packed, *inputs)
        self._jaxpr = closed.jaxpr
        self._consts = closed.consts
        self._packed_vars = self._jaxpr.invars[: len(packed)]
        self._of_lane: set[Var] = set(self._jaxpr.invars[len(packed) :])
        # Floating packed arrays that each variable without a lane depends on.
        self._sources: dict[Var, frozenset[int]] = {
            var: frozenset([k] if _is_float(var) else [])
            for k, var in enumerate(self._packed_vars)
        }
        used = {id(var) for eqn in self._jaxpr.eqns for var in eqn.invars}
        used |= {id(var) for var in self._jaxpr.outvars}
        self._functions = {
            id(eqn): _as_function(self._jaxpr, eqn, used) for eqn in self._jaxpr.eqns
        }
        self.sites: list[Site] = []
        self._rules = {id(each) for each in self._jaxpr.eqns if _contains(each, _RULE)}
        direct: set[int] = set()
        for eqn in self._jaxpr.eqns:
            direct |= self._add(eqn)
        for var in self._jaxpr.outvars:
            direct |= self._sources_of(var)
        self.direct = tuple(sorted(direct))
        self._sites = {id(site.eqn): k for k, site in enumerate(self.sites)}
        self._turned = [turned_product(each.eqn, self._of_lane) for each in self.sites]
        is_product = [each.eqn.primitive is lax.dot_general_p for each in self.sites]
        self._products = [k for k, each in enumerate(is_product) if each]
        self._others = [k for k, each in enumerate(is_product) if not each]

    def _sources_of(self, var: Any) -> frozenset[int]:
        if isinstance(var, Literal) or var in self._of_lane:
            return frozenset()
        return self._sources.get(var, frozenset())

    def _add(self, eqn: JaxprEqn) -> frozenset[int]:
        """Classifies an equation; returns which packed arrays it reads directly."""
        found = frozenset().union(*map(self._sources_of, eqn.invars))
        if eqn.primitive.name == "stop_gradient":
            found = frozenset()
        lanes = [v for v in eqn.invars if isinstance(v, Var) and v in self._of_lane]
        if not lanes:
            self._sources |= dict.fromkeys(eqn.outvars, found)
            return frozenset()
        self._of_lane |= set(eqn.outvars)
        if not eqn.outvars:  # a print, which the forward pass does
            return frozenset()
        gives = tuple(self._functions[id(eqn)][1])
        parameters = sum(_size(v) for v in eqn.invars if self._sources_of(v))
        small = parameters <= _SMALL * sum(map(_size, gives))
        computed_again = self._remat and eqn.primitive is lax.dot_general_p
        # A rule may give something for rows of a tape that have no lane; and a loop has
        # no derivative, but may do without one where the rest of the cell stops it.
        untaped = id(eqn) in self._rules or _contains(eqn, _LOOP)
        if small or computed_again or untaped or not all(map(_is_float, gives)):
            return found
        self.sites.append(Site(eqn, tuple(dict.fromkeys(lanes)), gives))
        return frozenset()

    def output_groups(self, read: Sequence[int]) -> list[tuple[int, ...]]:
        """Divides outputs into those that can be differentiated together.

        Args:
            read: Positions of outputs that may have a cotangent.

        Returns:
            A group for each output on whose way back a slope may be infinite: the zero
            cotangent of an output that nothing reads must not meet it. One group for
            all others.
        """
        outputs = self._jaxpr.outvars
        poles = [k for k in read if may_have_poles(self._jaxpr.eqns, [outputs[k]])]
        others = tuple(k for k in read if k not in poles)
        return [*([others] if others else []), *((k,) for k in poles)]

    def moving_outputs(
        self, operands: Sequence[bool], externals: Sequence[bool]
    ) -> list[bool]:
        """Tells which outputs have a derivative.

        Args:
            operands: Which operands have one.
            externals: Which external inputs have one.

        Returns:
            For each output, whether it changes with these or with parameters.
        """
        inputs = self._jaxpr.invars[len(self._packed_vars) :]
        given = zip(inputs, [*operands, *externals], strict=False)
        sources = [*self._packed_vars, *(var for var, moves in given if moves)]
        moving = moving_variables(self._jaxpr.eqns, sources)
        return [
            isinstance(each, Var) and each in moving for each in self._jaxpr.outvars
        ]

    def has_poles(self, outputs: Sequence[int]) -> bool:
        """Tells whether a slope of some outputs may be infinite."""
        return may_have_poles(
            self._jaxpr.eqns, [self._jaxpr.outvars[k] for k in outputs]
        )

    def moved_operands(self, output: int) -> list[bool]:
        """Tells which operands have a cotangent if an output has one.

        Args:
            output: The position of the output.

        Returns:
            For each operand.
        """
        reached = differentiable_inputs(self._jaxpr.eqns, [self._jaxpr.outvars[output]])
        operands = self._jaxpr.invars[len(self._packed_vars) :][: self._operands]
        return [each in reached for each in operands]

    def new_lives(self, rows: int) -> Array | None:
        """Returns a tape that tells which rows hold a lane; None if none is needed."""
        return jnp.zeros(_tape_rows(rows), jnp.bool) if self._others else None

    def new_reads(self, rows: int) -> Tapes:
        """Returns tapes for what each site reads of the lane, all zero."""
        return [_zeros(rows, site.reads) for site in self.sites]

    def new_gives(self, rows: int) -> Tapes:
        """Returns tapes for what each site gives, all zero."""
        return [_zeros(rows, site.gives) for site in self.sites]

    def turn(self, packed: Packed) -> list[Array | None]:
        """Turns the matrices of sites that are products, for `again`.

        Args:
            packed: The packed arrays.

        Returns:
            The matrix of each site; None where it would not pay.
        """
        values = self._without_lanes(packed)
        return [
            each.turn(values[each.matrix]) if each and each.pays else None
            for each in self._turned
        ]

    def forward(
        self, packed: Packed, *inputs: Any
    ) -> tuple[list[Array], list[list[Array]]]:
        """Runs one lane.

        Args:
            packed: The packed arrays.
            *inputs: Operands, external inputs and masks.

        Returns:
            The cell's outputs, and what each site gives.
        """
        values = self._with_inputs(packed, inputs)
        for eqn in self._jaxpr.eqns:
            if self._is_of_lane(eqn):
                values |= self._evaluate(eqn, values)
        gives = [[values[var] for var in site.gives] for site in self.sites]
        return [_value(var, values) for var in self._jaxpr.outvars], gives

    def again(
        self,
        live: Array,
        direct: Sequence[Array],
        inputs: Sequence[Any],
        deltas: Sequence[Sequence[Array]],
        packed: Packed,
        turned: Sequence[Array | None],
        given: Sequence[Sequence[Array]],
    ) -> tuple[list[Array], list[list[Array]]]:
        """Runs one lane a second time, to differentiate by the first three arrays.

        Args:
            live: Whether the lane holds a node that a cotangent reaches. If not, its
                cotangents are zero, but a rule of `jax.custom_vjp` may give something
                for zero.
            direct: The arrays at positions `direct`.
            inputs: Operands, external inputs and masks.
            deltas: Zeros to add to what each site gives: their cotangents are those of
                what it gives.
            packed: All packed arrays; taken as constant.
            turned: What `turn` made of them, outside of all loops.
            given: What each site gave; it is not computed again.

        Returns:
            The cell's outputs, and what each site reads of the lane.
        """
        own = list(packed)
        for k, array in zip(self.direct, direct, strict=True):
            own[k] = array
        constant = self._without_lanes(packed)
        values = self._with_inputs(own, inputs)
        read: list[list[Array]] = []
        for eqn in self._jaxpr.eqns:
            if not self._is_of_lane(eqn) or not eqn.outvars:
                continue
            if id(eqn) in self._rules:
                reads = {v: values[v] for v in self._functions[id(eqn)][0]}
                values |= self._evaluate(eqn, values | _only_if(live, reads))
                continue
            if id(eqn) not in self._sites:
                values |= self._evaluate(eqn, values)
                continue
            k = self._sites[id(eqn)]
            site = self.sites[k]
            read.append([values[var] for var in site.reads])
            pull = partial(self._pull_back, k, constant, turned[k])
            again = _known(pull, read[-1], given[k])
            for var, array, delta in zip(site.gives, again, deltas[k], strict=True):
                values[var] = array + delta
        return [_value(var, values) for var in self._jaxpr.outvars], read

    def _give(
        self, site: Site, constant: dict[Var, Any], read: Sequence[Array]
    ) -> list[Array]:
        values = constant | dict(zip(site.reads, read, strict=True))
        found = self._evaluate(site.eqn, values)
        return [found[var] for var in site.gives]

    def _pull_back(
        self,
        k: int,
        constant: dict[Var, Any],
        turned: Array | None,
        read: list[Array],
        bars: list[Array],
    ) -> list[Array]:
        """Finds the cotangents of what a site reads of the lane."""
        product = self._turned[k]
        if product is not None and turned is not None:
            return [product.pull(turned, bars[0])]
        _, pull = jax.vjp(partial(self._give, self.sites[k], constant), read)
        return pull(bars)[0]

    def _with_inputs(
        self, packed: Sequence[Array], inputs: Sequence[Any]
    ) -> dict[Var, Any]:
        values = self._without_lanes(packed)
        variables = self._jaxpr.invars[len(packed) :]
        return values | dict(zip(variables, jax.tree.leaves(inputs), strict=True))

    def contract(
        self,
        packed: Packed,
        reads: Tapes,
        gives_bar: Tapes,
        lives: Array | None,
        used: Array,
    ) -> dict[int, Array]:
        """Finds the cotangents of the packed arrays from the tapes.

        Args:
            packed: The packed arrays.
            reads: What each site read; one row per lane, zero where there is none.
            gives_bar: The cotangents of what it gave, zero where there is no lane.
            lives: Which rows hold a lane, as `new_lives` made them.
            used: How many rows are in use, a scalar.

        Returns:
            Cotangents of packed arrays by position, without what is read directly.
        """
        found: dict[int, Array] = {}
        if lives is not None:
            # At zero an equation may have no slope: rows without a lane read what the
            # first lane did.
            own = {k: reads[k] for k in self._others}
            own = keep_rows(lives, jnp.argmax(lives), own)
            bars = self._pull(self._others, packed, own, gives_bar)
            found = {k: jnp.where(lives.any(), bar, 0) for k, bar in bars.items()}
        if not self._products:
            return found
        positions = self._positions(self._products)
        sums = {k: jnp.zeros_like(packed[k]) for k in positions}
        done = jnp.int32(0)
        rows = len(jax.tree.leaves(reads)[0])
        for size in [each for each in _BLOCKS if each <= rows]:
            end = used // size if size > _BLOCKS[-1] else -(-used // size)

            def add(
                block: Array, sums: dict[int, Array], size: int = size
            ) -> dict[int, Array]:
                part = partial(slice_rows, first=block * size, width=size)
                some = jax.tree.map(part, (reads, gives_bar))
                more = self._pull(
                    self._products, packed, dict(enumerate(some[0])), some[1]
                )
                return {k: sums[k] + more[k] for k in sums}

            sums = lax.fori_loop(done // size, end, add, sums)
            done = end * size
        for k, each in sums.items():
            found[k] = found[k] + each if k in found else each
        return found

    def _pull(
        self,
        chosen: Sequence[int],
        packed: Packed,
        reads: dict[int, list[Array]],
        gives_bar: Tapes,
    ) -> dict[int, Array]:
        """Contracts the tapes of some sites."""
        sites = [self.sites[k] for k in chosen]
        positions = self._positions(chosen)

        def give(arrays: list[Array]) -> list[list[Array]]:
            own = list(packed)
            for k, array in zip(positions, arrays, strict=True):
                own[k] = array
            values = self._without_lanes(own)
            return [
                jax.vmap(partial(self._give, site, values))(reads[k])
                for k, site in zip(chosen, sites, strict=True)
            ]

        _, pull = jax.vjp(give, [packed[k] for k in positions])
        (bars,) = pull([gives_bar[k] for k in chosen])
        return dict(zip(positions, bars, strict=True))

    def _positions(self, chosen: Sequence[int]) -> list[int]:
        """Finds the packed arrays whose cotangents the tapes of some sites give."""
        eqns = [self.sites[k].eqn for k in chosen]
        sources = [self._sources_of(var) for eqn in eqns for var in eqn.invars]
        return sorted(frozenset().union(*sources))

    def _evaluate(self, eqn: JaxprEqn, values: dict[Var, Any]) -> dict[Var, Any]:
        reads, gives, function = self._functions[id(eqn)]
        return dict(zip(gives, function(*(values[var] for var in reads)), strict=True))

    def _without_lanes(self, packed: Sequence[Array]) -> dict[Var, Any]:
        """Evaluates what depends on no lane."""
        values = dict(zip(self._jaxpr.constvars, self._consts, strict=True))
        values |= zip(self._packed_vars, packed, strict=True)
        for eqn in self._jaxpr.eqns:
            if not self._is_of_lane(eqn):
                values |= self._evaluate(eqn, values)
        return values

    def _is_of_lane(self, eqn: JaxprEqn) -> bool:
        # What gives nothing, such as a print, is done for each lane, in order.
        return not eqn.outvars or not self._of_lane.isdisjoint(eqn.outvars)


def taped_cell(
    node_type: NodeType, types: TypeTable, packing: bool, remat: bool = False
) -> TapedCell:
    """Returns the taped cell of a type.

    Args:
        node_type: The type.
        types: The table that it is in.
        packing: As for `cell_program`.
        remat: As for `TapedCell`. Types without operands do so anyway: they run in few
            and wide chunks, in which tapes take more time than they save.

    Returns:
        The taped cell.
    """
    remat = remat or not node_type.operand_kinds

    def make() -> TapedCell:
        with use_abstract_mesh(NO_MESH):
            cell = cell_program(node_type, types, packing)
            return TapedCell(cell, node_type, types, remat=remat)

    key = (taped_cell, node_type, packing, remat, trace_settings())
    return types.derived(key, make)


def _tape_rows(rows: int) -> int:
    return -(-rows // _BLOCKS[-1]) * _BLOCKS[-1]


def _zeros(rows: int, variables: Sequence[Var]) -> list[Array]:
    rows = _tape_rows(rows)
    return [jnp.zeros((rows, *shape_of(each)), dtype_of(each)) for each in variables]


def _known(
    pull: Callable[[list[Array], list[Array]], list[Array]],
    read: list[Array],
    given: Sequence[Array],
) -> list[Array]:
    """What a function gives, known already; `pull` makes of its cotangents others."""

    @jax.custom_vjp
    def known(read: list[Array], given: list[Array]) -> list[Array]:
        return given

    def forward(read: list[Array], given: list[Array]) -> Any:
        return given, read

    def backward(read: list[Array], bars: list[Array]) -> Any:
        return pull(read, bars), list(map(jnp.zeros_like, bars))

    known.defvjp(forward, backward)
    return known(read, list(given))


def _only_if(live: Array, values: dict[Var, Any]) -> dict[Var, Any]:
    """The same values, whose cotangents are zero in lanes that are not live."""
    return {
        var: jnp.where(live, each, lax.stop_gradient(each)) if _is_float(var) else each
        for var, each in values.items()
    }


def _contains(eqn: JaxprEqn, primitive: str) -> bool:
    """Whether an equation is of a primitive, or one inside it."""
    return eqn.primitive.name == primitive or any(
        _contains(each, primitive) for jaxpr in inner_jaxprs(eqn) for each in jaxpr.eqns
    )


def _as_function(
    jaxpr: Jaxpr, eqn: JaxprEqn, used: set[int]
) -> tuple[list[Var], list[Var], Callable[..., Sequence[Any]]]:
    """What an equation reads, what it gives that is used, and how it computes that."""
    reads = [var for var in eqn.invars if isinstance(var, Var)]
    reads = list(dict.fromkeys(reads))
    gives = [var for var in eqn.outvars if id(var) in used]
    single = jaxpr.replace(
        constvars=[], invars=reads, outvars=gives, eqns=[eqn], effects=eqn.effects
    )
    return reads, gives, jaxpr_as_fun(ClosedJaxpr(single, []))


def _value(var: Any, values: dict[Var, Any]) -> Any:
    return var.val if isinstance(var, Literal) else values[var]


def _is_float(var: Any) -> bool:
    return jnp.issubdtype(dtype_of(var), jnp.inexact)


def _size(var: Any) -> int:
    return math.prod(shape_of(var))
