"""Weight-gradient sites: equations whose parameters get their gradients from tapes.

An equation that mixes a parameter with values of a batch row, such as a product or the
lookup of a table's row, is a *weight-gradient site*: the parameter's cotangent is a sum
over all batch rows. Summing it chunk by chunk would write an array of the parameter's
size for every chunk. So the backward pass records each site's inputs and the cotangents
of its outputs on *tapes* with one row per batch row, and one contraction over the tapes
at the end gives the parameter's cotangent (`weight_gradient`). Small parameters, such
as biases, are summed chunk by chunk: their tapes would be larger.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from edbatch.cell.binding_time import Split
from edbatch.cell.derivatives import equations_with_poles
from edbatch.cell.jaxpr import (
    Atom,
    JaxprEqn,
    Var,
    as_function,
    contains,
    dtype_of,
    equations_of,
    is_float,
    is_operation,
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
    PRODUCTS,
    STOP_GRADIENT,
    WHILE,
)
from edbatch.cell.summation import sum_dtype
from edbatch.cell.table_lookup import TableLookup, table_lookup
from edbatch.cell.tapes import tape_rows
from edbatch.cell.value_ranges import infinite_constants
from edbatch.cell.wide_casts import casts_of

Values = dict[Var, Any]

# A parameter is small if it has at most this many times the elements of its equation's
# outputs for one batch row.
_SMALL = 4


@dataclass(frozen=True, eq=False)
class Site:
    """A weight-gradient site.

    Attributes:
        eqn: The equation.
        inputs: Its inputs that depend on the batch row.
        outputs: Its outputs, all floating-point.
        positions: The parameters that its other inputs depend on.
        evaluate: Computes its outputs from the values of all its inputs.
        taped: The variables on its tape: the inputs, or smaller ones they are made of.
        move: Computes the inputs from `taped`, step by step.
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
        """Whether JAX would sum the rows that it looks up in half precision."""
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
        """As `run`, from arrays for `taped`."""
        values = values | dict(zip(self.taped, taped, strict=True))
        for step in self.move:
            values |= step(values)
        return self.run(values, [values[var] for var in self.inputs])


def evaluator(
    eqn: JaxprEqn, used: Collection[Var]
) -> tuple[list[Var], Callable[[Values], Values]]:
    """Makes an equation ready for evaluation.

    Args:
        eqn: The equation.
        used: The variables whose values are needed.

    Returns:
        The variables that it reads, and the function from values to its needed outputs.
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
        split: The cell, split at the binding time of parameters. Its parameters are the
            packed arrays.
        of_row: The variables that depend on the batch row.
        evaluate: The evaluator of each equation of the run-time partition, by identity.
        used: The variables whose values are needed.
        least_contraction: Products that contract fewer elements per element of the
            result are not sites.

    Attributes:
        sites: The sites, in the order in which they run.
        direct: Positions of the parameters that are also read outside sites.
        by_row: Those in `direct` that are read in half precision and are small wherever
            they are read directly. Each batch row reads its own copy of these: XLA
            would otherwise be free to sum the rows' cotangents in half precision.
        products: Positions of the sites that are matrix products.
        others: Positions of the other sites.
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
        equations = equations_of(split.run_time)
        assert len(equations) == len(split.run_time), "a traced cell has no others"
        constants = equations_of(split.precomputed)
        # On a tape, the cotangent of an unread output is an explicit zero.
        is_apart = sum(map(is_float, split.graph.outputs)) > 1
        infinite = infinite_constants(split.graph.constants)
        every = [*constants, *equations]
        poles = equations_with_poles(every, infinite) if is_apart else ()
        # Products may read infinities: their tapes leave out rows without a cotangent.
        self._poles = {id(each) for each in poles if name_of(each) not in PRODUCTS}
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
        self.products = [k for k, each in enumerate(self.sites) if each.is_product]
        self.others = [k for k, each in enumerate(self.sites) if not each.is_product]

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, k: int) -> Site:
        return self.sites[k]

    def _positions(self, atoms: Iterable[Atom]) -> frozenset[int]:
        """Positions of the floating-point parameters that some atoms depend on."""
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
        untaped = (
            contains(eqn, CUSTOM_VJP) or contains(eqn, WHILE) or id(eqn) in self._poles
        )
        return not (small or recomputed or untaped) and all(map(is_float, outputs))

    def _is_small(self, eqn: JaxprEqn, outputs: Sequence[Var]) -> bool:
        """Whether an equation's parameters are not much larger than its outputs."""
        parameters = [v for v in eqn.invars if self._positions([v])]
        return sum(map(size_of, parameters)) <= _SMALL * sum(map(size_of, outputs))

    def new_mask(self, rows: int) -> Array | None:
        """Returns a tape that marks the rows in use; None if no site needs it."""
        return jnp.zeros(tape_rows(rows), jnp.bool) if self.others else None

    def new_owners(self, rows: int, members: int) -> Array:
        """Returns a tape of the member that each row reads; initially none."""
        return jnp.full(tape_rows(rows), members, jnp.int32)

    def lookups(self, parameter: int) -> list[TableLookup] | None:
        """Returns the sites that look up rows of a parameter.

        Args:
            parameter: The position of the parameter.

        Returns:
            The sites; None if the parameter is also read in another way.
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

    def parameters(self, chosen: Sequence[int]) -> list[int]:
        """Returns the positions of the parameters that some sites read."""
        return sorted(frozenset().union(*(self.sites[k].positions for k in chosen)))


def _sources(split: Split) -> dict[Var, frozenset[int]]:
    """Positions of floating-point parameters that precomputed variables depend on."""
    none: frozenset[int] = frozenset()
    found = {
        var: frozenset([k] if is_float(var) else [])
        for k, var in enumerate(split.graph.parameters)
    }
    for node in split.precomputed:
        stops = is_operation(node, (STOP_GRADIENT,))
        read = [] if stops else [found.get(v, none) for v in variables(node.invars)]
        found |= dict.fromkeys(node.outvars, none.union(*read))
    return found


def _contracted(eqn: JaxprEqn) -> int:
    """Returns the number of elements that a product contracts per result element."""
    dot = read_dot(eqn)
    assert dot is not None, "it is a product"
    return math.prod(shape_of(eqn.invars[0])[axis] for axis in dot.dims[0])
