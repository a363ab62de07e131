"""Forward and backward pass of a cell in the gradient of a program.

The forward pass also returns the outputs of each weight-gradient site (see
`weight_gradient_sites`); computing them is most of a cell's work. They are stored on
the tape that will later hold their cotangents. The backward pass runs each batch row a
second time, with these outputs given, and differentiates this second run.
"""

import functools
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import use_abstract_mesh

from edbatch.cell.binding_time import BindingTime, binding_times, split
from edbatch.cell.cell_graph import trace_cell
from edbatch.cell.derivatives import (
    active_variables,
    differentiable_inputs,
    may_have_poles,
)
from edbatch.cell.jaxpr import (
    Literal,
    Var,
    contains,
    equations_of,
    is_float,
    variables,
)
from edbatch.cell.primitives import CUSTOM_VJP
from edbatch.cell.program import (
    CellProgram,
    Packed,
    cell_program,
)
from edbatch.cell.rules_of_parameters import check_rules
from edbatch.cell.same_form import form_of
from edbatch.cell.stacks import Stacks
from edbatch.cell.table_lookup import TableLookup
from edbatch.cell.tapes import Tapes, new_tapes
from edbatch.cell.transposed_weight import transposed_weight
from edbatch.cell.type_call import NO_MESH, trace_settings
from edbatch.cell.value_ranges import infinite_constants
from edbatch.cell.weight_gradient import Contraction
from edbatch.cell.weight_gradient_sites import Sites, Values, evaluator
from edbatch.cell.wide_casts import without_casts
from edbatch.graph.node_type import NodeType, input_specs
from edbatch.graph.type_table import TypeTable
from edbatch.target import Target, choose_target


class TapedCell:
    """A cell's equations, with tapes for the gradients of its large parameters.

    Args:
        cell: The cell.
        node_type: Its type.
        types: The type's table.
        least_contraction: Products that contract fewer elements per element of the
            result have no tapes: they are recomputed in the backward pass, and the
            cotangents of their weights are summed chunk by chunk, which takes less
            memory.
        target: The kind of device that runs it; None for `choose_target`.

    Attributes:
        sites: The weight-gradient sites.
        direct: Positions of the packed arrays that are also read outside sites.
        by_row: For each entry of `direct`, whether every batch row reads its own copy
            of the array; see `Sites.by_row`.
    """

    def __init__(
        self,
        cell: CellProgram,
        node_type: NodeType,
        types: TypeTable,
        *,
        least_contraction: float = 0,
        target: Target | None = None,
    ) -> None:
        self._target = choose_target() if target is None else target
        packed = jax.eval_shape(cell.pack, node_type.params_spec(types.params_spec))
        inputs = input_specs(
            node_type.template,
            node_type.operand_kinds,
            node_type.external_kinds,
            types.avals,
        )
        graph, _ = trace_cell(cell.run, packed, inputs)
        times = binding_times(graph)
        parts = split(graph, BindingTime.PARAM, times, remake=False)
        of_row = {var for var, time in times.items() if time > BindingTime.PARAM}
        equations = equations_of(parts.run_time)
        used = {*variables(graph.outputs)}
        used.update(var for eqn in equations for var in variables(eqn.invars))
        self._graph = graph
        self._all_equations = equations_of(graph.nodes)
        self._equations = equations
        self._operands = graph.inputs[: len(inputs[0])]
        self._handed_on = parts.handed_on
        self._precomputed = parts.precomputed_function(
            graph.parameters, parts.handed_on
        )
        self._precomputed_wide = without_casts(
            graph.parameters,
            equations_of(parts.precomputed),
            parts.handed_on,
            graph.constants,
        )
        ready = {id(eqn): evaluator(eqn, used) for eqn in equations}
        self._evaluate = {key: evaluate for key, (_, evaluate) in ready.items()}
        # Inputs of the equations with a jax.custom_vjp rule.
        self._rules = {
            id(eqn): ready[id(eqn)][0] for eqn in equations if contains(eqn, CUSTOM_VJP)
        }
        sites = Sites(parts, of_row, self._evaluate, used, least_contraction)
        self._sites = sites
        self._contraction = Contraction(sites, self._constant)
        self.sites = sites.sites
        self.direct = sites.direct
        self.by_row = [k in sites.by_row for k in self.direct]
        self._site_of = {id(site.eqn): k for k, site in enumerate(self.sites)}
        self._weights = [transposed_weight(each.eqn, of_row) for each in self.sites]
        self._calls: dict[Any, Any] = {}

    def called(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a jitted function of the cell, shared by all loops that call it.

        Args:
            function: Takes the cell, a hashable static argument, and arrays.

        Returns:
            The function without its first argument; see `rows_of`.
        """
        known = self._calls.get(function)
        if known is None:

            def call(static: Any, *arrays: Any) -> Any:
                return function(self, static, *arrays)

            made = jax.jit(call, static_argnums=0)
            known = self._calls.setdefault(function, made)
        return known

    def output_groups(self, read: Sequence[int]) -> list[tuple[int, ...]]:
        """Divides outputs into groups that can be differentiated together.

        Args:
            read: Positions of outputs that may have a cotangent.

        Returns:
            One group for each output on whose backward path a derivative may be
            infinite, which must not be multiplied by the zero cotangent of an unread
            output. One group for all other outputs.
        """
        poles = [k for k in read if self.has_poles([k])]
        others = tuple(k for k in read if k not in poles)
        return [*([others] if others else []), *((k,) for k in poles)]

    def has_poles(self, outputs: Sequence[int]) -> bool:
        """Returns whether the outputs' backward path may have infinite derivatives."""
        return any(self._poles[k] for k in outputs)

    @functools.cached_property
    def _poles(self) -> list[bool]:
        """Per output, whether a derivative on its backward path may be infinite."""
        infinite = infinite_constants(self._graph.constants)
        return [
            may_have_poles(self._all_equations, [each], infinite)
            for each in self._graph.outputs
        ]

    def active_outputs(
        self, operands: Sequence[bool], externals: Sequence[bool]
    ) -> list[bool]:
        """Finds the outputs that have a derivative.

        Args:
            operands: Which operands have a derivative.
            externals: Which external inputs have a derivative.

        Returns:
            For each output, whether it depends on one of these inputs or on parameters.
        """
        inputs = zip(self._graph.inputs, [*operands, *externals], strict=False)
        sources = [*self._graph.parameters, *(var for var, active in inputs if active)]
        active = active_variables(self._graph.nodes, sources)
        return [isinstance(v, Var) and v in active for v in self._graph.outputs]

    def linked_operands(self, output: int) -> list[bool]:
        """Finds the operands that have a cotangent if an output has one.

        Args:
            output: The position of the output.

        Returns:
            For each operand, whether it has a cotangent.
        """
        outputs = [self._graph.outputs[output]]
        reached = differentiable_inputs(self._all_equations, outputs)
        return [each in reached for each in self._operands]

    def linked_sites(self, outputs: Sequence[int]) -> list[bool]:
        """Finds the sites that have a cotangent if some outputs have one.

        Args:
            outputs: The positions of the outputs.

        Returns:
            For each site, whether it has a cotangent.
        """
        some = [self._graph.outputs[k] for k in outputs]
        reached = differentiable_inputs(self._all_equations, some)
        return [not reached.isdisjoint(each.outputs) for each in self.sites]

    def new_mask(self, rows: int) -> Array | None:
        """Returns a tape that marks the rows in use; None if none is needed."""
        return self._sites.new_mask(rows)

    def new_owners(self, rows: int, members: int) -> Array:
        """Returns a tape of the member that each row reads; initially none."""
        return self._sites.new_owners(rows, members)

    def new_inputs(self, rows: int) -> Tapes:
        """Returns tapes for the inputs of each site, all zero."""
        return new_tapes(rows, [site.taped for site in self.sites])

    def new_outputs(self, rows: int) -> Tapes:
        """Returns tapes for the outputs of each site, all zero."""
        return new_tapes(rows, [site.outputs for site in self.sites])

    def transpose_weights(self, packed: Packed) -> list[Array | None]:
        """Transposes the weights of sites that are products, for `recompute`.

        Args:
            packed: The packed arrays.

        Returns:
            The transposed weight of each site; None where transposing does not pay.
        """
        values = self._constant(packed)
        return [
            each.transpose(values[each.weight])
            if each and each.pays(self._target)
            else None
            for each in self._weights
        ]

    def lookups(self, position: int) -> list[TableLookup] | None:
        """Returns the sites that look up rows of a packed array.

        Args:
            position: The array's position among the packed arrays.

        Returns:
            The sites; None if the array is also read in another way.
        """
        return self._sites.lookups(position)

    def forward(
        self, packed: Packed, *inputs: Any, read: Sequence[int] = ()
    ) -> tuple[list[Array], list[list[Array]], list[list[Array]]]:
        """Runs one batch row.

        Args:
            packed: The packed arrays.
            *inputs: Operands, external inputs and masks.
            read: Sites whose inputs to return.

        Returns:
            The cell's outputs, the outputs of each site, and the inputs of the sites in
            `read`.
        """
        values = self._with_inputs(packed, inputs)
        for eqn in self._equations:
            values |= self._evaluate[id(eqn)](values)
        return (
            self._outputs(values),
            [[values[var] for var in site.outputs] for site in self.sites],
            [[values[var] for var in self.sites[k].inputs] for k in read],
        )

    def recompute(
        self,
        live: Array,
        direct: Sequence[Array],
        inputs: Sequence[Any],
        deltas: Sequence[Sequence[Array]],
        packed: Packed,
        transposed: Sequence[Array | None],
        known_outputs: Sequence[Sequence[Array]],
    ) -> tuple[list[Array], list[list[Array]]]:
        """Runs a batch row again, differentiable in `direct`, `inputs` and `deltas`.

        Args:
            live: Whether a cotangent reaches the row. If not, the row's cotangents are
                zero, even if a `jax.custom_vjp` rule maps a cotangent of zero to a
                nonzero one.
            direct: The packed arrays at the positions in the attribute `direct`.
            inputs: Operands, external inputs and masks.
            deltas: Zeros to add to the outputs of each site: the cotangents of these
                zeros are the cotangents of the outputs.
            packed: All packed arrays; treated as constant.
            transposed: The transposed weights, from `transpose_weights`.
            known_outputs: The outputs of each site, which are not recomputed.

        Returns:
            The cell's outputs, and the inputs of each site.
        """
        own = list(packed)
        for k, array in zip(self.direct, direct, strict=True):
            own[k] = array
        constant = self._constant(packed)
        values = self._with_inputs(own, inputs)
        read: list[list[Array]] = []
        for eqn in self._equations:
            if not eqn.outvars:  # a print, which ran in the forward pass
                continue
            if id(eqn) in self._rules:
                masked = _only_if(live, {v: values[v] for v in self._rules[id(eqn)]})
                values |= self._evaluate[id(eqn)](values | masked)
                continue
            if id(eqn) not in self._site_of:
                values |= self._evaluate[id(eqn)](values)
                continue
            k = self._site_of[id(eqn)]
            site = self.sites[k]
            read.append([values[var] for var in site.taped])
            inputs = [values[var] for var in site.inputs]
            pull = partial(self._pull_back, k, tuple(constant))
            reads = [*constant.values()], transposed[k]
            outputs = _known(pull, inputs, known_outputs[k], reads)
            for var, array, delta in zip(site.outputs, outputs, deltas[k], strict=True):
                values[var] = array + delta
        return self._outputs(values), read

    def contract(
        self,
        packed: Packed,
        site_inputs: Tapes,
        site_outputs_bar: Tapes,
        live_rows: Array | None,
        used: Array | None,
        left_out: Collection[int] = (),
    ) -> dict[int, Array]:
        """Computes the cotangents of the packed arrays from the tapes.

        Args:
            packed: The packed arrays.
            site_inputs: The inputs of each site, one row per batch row; zero elsewhere.
            site_outputs_bar: The cotangents of its outputs, likewise.
            live_rows: Which rows are in use, as initialized by `new_mask`.
            used: The number of rows in use, a scalar; None to contract all at once.
            left_out: Sites that are not contracted.

        Returns:
            Cotangents of packed arrays by position, without the part from direct reads.
        """
        tapes = site_inputs, site_outputs_bar
        return self._contraction.contract(packed, *tapes, live_rows, used, left_out)

    def contract_members(
        self,
        packed: Stacks,
        reads: Tapes,
        outputs_bar: Tapes,
        owner: Array,
        members: int,
    ) -> dict[int, Array]:
        """Computes the cotangents of a family's packed arrays from the tapes.

        Args:
            packed: The packed arrays.
            reads: As `site_inputs` of `contract`.
            outputs_bar: As `site_outputs_bar` of `contract`.
            owner: The member of each row, as initialized by `new_owners`.
            members: The number of members.

        Returns:
            As `contract`; arrays are stacked like the packed arrays.
        """
        tapes = reads, outputs_bar
        return self._contraction.contract_members(packed, *tapes, owner, members)

    def _pull_back(
        self,
        k: int,
        names: Sequence[Any],
        reads: tuple[list[Array], Array | None],
        inputs: list[Array],
        bars: list[Array],
    ) -> list[Array]:
        """The cotangents of a site's inputs.

        Args:
            k: Index of the site.
            names: The variables that depend on no batch row.
            reads: The values of `names`, and the transposed weight.
            inputs: The site's inputs.
            bars: The cotangents of its outputs.

        Returns:
            One cotangent per input.
        """
        values, transposed = reads
        weight = self._weights[k]
        if weight is not None and transposed is not None:
            return [weight.pull(transposed, bars[0])]
        constant = dict(zip(names, values, strict=True))
        _, pull = jax.vjp(partial(self.sites[k].run, constant), inputs)
        return pull(bars)[0]

    def _constant(self, packed: Sequence[Array], /, *, wide: bool = False) -> Values:
        """Values that depend on no batch row; see `wide_casts` for `wide`."""
        precomputed = self._precomputed_wide if wide else self._precomputed
        handed_on = zip(self._handed_on, precomputed(*packed), strict=True)
        return self._graph.constants | dict(handed_on)

    def _with_inputs(self, packed: Sequence[Array], inputs: Sequence[Any]) -> Values:
        leaves = zip(self._graph.inputs, jax.tree.leaves(inputs), strict=True)
        return self._constant(packed) | dict(leaves)

    def _outputs(self, values: Values) -> list[Array]:
        outputs = self._graph.outputs
        return [v.val if isinstance(v, Literal) else values[v] for v in outputs]


def taped_cell(
    node_type: NodeType,
    types: TypeTable,
    packing: bool,
    remat: bool = False,
    target: Target | None = None,
) -> TapedCell:
    """Returns the taped cell of a type.

    Args:
        node_type: The type.
        types: The type's table.
        packing: As for `cell_program`.
        remat: Whether no product has a tape. Even if False, types without operands have
            tapes for large products only, or for none (`Target.taped_contraction`):
            these types run in few, wide chunks, in which tapes may take more time than
            they save.
        target: As for `cell_program`.

    Returns:
        The taped cell.
    """
    own = choose_target() if target is None else target
    least_contraction: float = 0
    if remat or not (node_type.operand_kinds or own.taped_contraction):
        least_contraction = math.inf
    elif not node_type.operand_kinds:
        least_contraction = own.taped_contraction
    node_type = form_of(node_type, types).first

    def make() -> TapedCell:
        with use_abstract_mesh(NO_MESH):
            check_rules(node_type, types)
            cell = cell_program(node_type, types, packing, own, differentiated=True)
            return TapedCell(
                cell,
                node_type,
                types,
                least_contraction=least_contraction,
                target=own,
            )

    settings = packing, least_contraction, own, trace_settings()
    key = (taped_cell, node_type, *settings)
    return types.derived(key, make)


def _known(
    pull: Callable[[Any, list[Array], list[Array]], list[Array]],
    inputs: list[Array],
    outputs: Sequence[Array],
    reads: Any,
) -> list[Array]:
    """Returns known outputs of a function; `pull` is the function's backward pass.

    The arrays that `pull` reads are passed as `reads` and have no cotangents: if the
    rule closed over traced arrays, JAX would report them as leaked tracers
    (`jax_check_tracer_leaks`).
    """

    @jax.custom_vjp
    def known(inputs: list[Array], outputs: list[Array], reads: Any) -> list[Array]:
        return outputs

    def forward(inputs: list[Array], outputs: list[Array], reads: Any) -> Any:
        return outputs, (inputs, reads)

    def backward(kept: Any, bars: list[Array]) -> Any:
        inputs, reads = kept
        return pull(reads, inputs, bars), list(map(jnp.zeros_like, bars)), None

    known.defvjp(forward, backward)
    return known(inputs, list(outputs), reads)


def _only_if(live: Array, values: Values) -> Values:
    """The same values; their cotangents are zero in rows that are not live."""
    return {
        var: jnp.where(live, each, lax.stop_gradient(each)) if is_float(var) else each
        for var, each in values.items()
    }
