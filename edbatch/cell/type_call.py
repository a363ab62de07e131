"""Traces the cell of a type, as a function of flat arrays."""

import itertools
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import AbstractMesh, use_abstract_mesh
from jax.tree_util import PyTreeDef

from edbatch.cell.cell_graph import CellGraph, renamed, trace_cell
from edbatch.cell.jaxpr import Var, dtype_of, shape_of, trace
from edbatch.cell.module_writes import (
    WatchedModules,
    WrittenParts,
    refuse_writes,
)
from edbatch.graph.cell_outputs import OutputSpec
from edbatch.graph.constants import number_marks
from edbatch.graph.context import inside_cell
from edbatch.graph.node_type import NodeType, input_specs
from edbatch.graph.parameters import part_of
from edbatch.graph.type_checks import check_stored
from edbatch.graph.type_table import TypeTable

Specs = tuple[list[Any], list[Any], list[Any]]  # operands, external inputs, masks

# A cell is traced once for all programs, even if the first runs on several devices: a
# function that is traced under their mesh would be bound to it.
NO_MESH = AbstractMesh((), ())

# JAX settings that a traced cell may depend on; not every version has all of them.
SETTINGS = (
    "eager_constant_folding",
    "jax_accurate_erf_inv",
    "jax_allow_f16_reductions",
    "jax_auto_pcast",
    "jax_check_static_indices",
    "jax_custom_jvp3",
    "jax_custom_vjp3",
    "jax_debug_key_reuse",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_jit",
    "jax_enable_x64",
    "jax_error_checking_behavior_divide",
    "jax_error_checking_behavior_nan",
    "jax_error_checking_behavior_oob",
    "jax_explicit_x64_dtypes",
    "jax_high_dynamic_range_gumbel",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_random_seed_offset",
    "jax_remat3",
    "jax_remat_barrier_no_cotangents",
    "jax_scan3",
    "jax_softmax_custom_jvp",
    "jax_threefry_partitionable",
    "jax_use_direct_linearize",
    "jax_use_simplified_jaxpr_constants",
)


def trace_settings() -> tuple[Any, ...]:
    """Returns the JAX settings under which a cell is traced in this thread."""
    return tuple(getattr(jax.config, name, None) for name in SETTINGS)


def traced_type(node_type: NodeType, types: TypeTable) -> tuple[CellGraph, Specs]:
    """Returns the traced cell of a type; the same object for all callers.

    Types that differ only in which parameters they read are traced once.

    Args:
        node_type: The type.
        types: The type's table.

    Returns:
        The cell, with the parameters that `NodeType.params_spec` describes; and its
        other arguments, the operands, external inputs and masks of one instance, as
        ``jax.ShapeDtypeStruct``.
    """
    graph, specs, _ = _trace_type(node_type, types)
    return graph, specs


def _trace_type(
    node_type: NodeType, types: TypeTable
) -> tuple[CellGraph, Specs, PyTreeDef]:
    """Returns `traced_type`, and the structure of the cell's output."""
    template = node_type.template.with_exact_constants()
    steps = [path._steps for kind, path in template.leaves if kind == "parameter"]
    own = iter(steps)
    leaves = tuple(
        (kind, next(own) if kind == "parameter" else content)
        for kind, content in template.leaves
    )
    facts = (
        id(node_type.function),
        template.treedef,
        (template.operands, template.externals, template.paddings),
        (node_type.operand_kinds, node_type.external_kinds),
        trace_settings(),
    )
    key = (*facts, leaves, node_type.family)
    found = types.traces.get(key)
    if found is None:
        params_spec = node_type.params_spec(types.params_spec)
        parts = [part_of(params_spec, each) for each in steps]
        without_paths = (*facts, _without_paths(leaves))
        form, specs, tree = _traced_form(node_type, types, parts, without_paths)
        with use_abstract_mesh(NO_MESH):
            variables = types.derived(
                (_at_places, node_type.family),
                lambda: trace(lambda _: (), params_spec)[0].inputs,
            )
        graph = _at_places(form, _places(params_spec, steps), variables)
        made = graph, specs, tree, node_type.function  # kept alive for its id
        found = types.traces.setdefault(key, made)
    return found[:3]


def _without_paths(leaves: Sequence[tuple[str, Any]]) -> Hashable:
    return tuple((k, None if k == "parameter" else content) for k, content in leaves)


def _traced_form(
    node_type: NodeType, types: TypeTable, parts: list[Any], facts: Hashable
) -> tuple[CellGraph, Specs, PyTreeDef]:
    """Traces a cell with the parts of the parameters that are passed to it.

    Args:
        node_type: A type of the cell.
        types: The type's table.
        parts: The parts, with ``jax.ShapeDtypeStruct`` leaves.
        facts: Everything that the trace depends on, except the structure, shapes and
            dtypes of the parts.

    Returns:
        The cell, whose parameters are the arrays of all parts in order; its other
        arguments; and the structure of its output.
    """
    arrays, treedef = jax.tree.flatten(parts)
    shapes = tuple((each.shape, each.dtype) for each in arrays)
    key = (_traced_form, facts, treedef, number_marks(treedef), shapes)
    found = types.traces.get(key)
    if found is None:
        check_stored(types, node_type)
        numbers = itertools.count()
        template = replace(
            node_type.template,
            leaves=tuple(
                ("part", next(numbers)) if kind == "parameter" else (kind, content)
                for kind, content in node_type.template.leaves
            ),
        )

        written, tree = WrittenParts([], []), None

        def run(parts: Any, *inputs: Any) -> tuple[Any, WatchedModules]:
            args, kwargs = template.arguments(parts, *inputs)
            modules = WatchedModules((args, kwargs))
            with inside_cell():
                return node_type.function(*args, **kwargs), modules

        def function(parts: Any, *inputs: Any) -> list[Any]:
            nonlocal written, tree
            output, modules = run(parts, *inputs)
            written = modules.written()
            leaves, tree = jax.tree.flatten(output)
            return leaves

        specs = input_specs(
            node_type.template,
            node_type.operand_kinds,
            node_type.external_kinds,
            types.avals,
        )
        with use_abstract_mesh(NO_MESH):
            graph, _ = trace_cell(function, parts, specs)
            refuse_writes(node_type.cell.name, run, (parts, *specs), written)
        made = graph, specs, tree, node_type.function  # kept alive for its id
        found = types.traces.setdefault(key, made)
    return found[:3]


def _places(params_spec: Any, steps: Iterable[Any]) -> list[int]:
    """Positions of the arrays of some parts among all parameters."""
    leaves, treedef = jax.tree.flatten(params_spec)
    positions = jax.tree.unflatten(treedef, range(len(leaves)))
    return jax.tree.leaves([part_of(positions, each) for each in steps])


def _at_places(
    form: CellGraph, places: list[int], variables: Sequence[Var]
) -> CellGraph:
    """Converts a cell of some parameter arrays to a cell of all parameters.

    Args:
        form: The cell of some arrays.
        places: Position of each of these arrays among the parameters.
        variables: Variables of all parameters, used for the parameters that the cell
            does not take.

    Returns:
        The cell; an array that is passed twice becomes one variable.
    """
    variable_at = dict(enumerate(variables))
    own = dict(zip(reversed(places), reversed(form.parameters), strict=True))
    first = {
        var: own[place] for var, place in zip(form.parameters, places, strict=True)
    }
    twice = {var: one for var, one in first.items() if var is not one}
    graph = renamed(form, twice) if twice else form
    return replace(graph, parameters=tuple({**variable_at, **own}.values()))


def trace_at_call(node_type: NodeType, types: TypeTable) -> OutputSpec:
    """Traces the cell of a type when it is called for the first time.

    Values that the cell closes over may have changed once the model has run, such as
    the variable of a loop in which the cell was made.

    Args:
        node_type: The type; its outputs need not be known.
        types: The type's table.

    Returns:
        The leaves of the cell's output, and their tree.
    """
    graph, _, tree = _trace_type(node_type, types)
    if node_type.takes_rng and not node_type.needs_rng:
        with suppress(Exception):  # raised again when the model runs without a key
            traced_type(node_type.without_rng(), types)
    leaves = [jax.ShapeDtypeStruct(shape_of(v), dtype_of(v)) for v in graph.outputs]
    # As from `jax.eval_shape`: classes of users may make another structure again.
    return jax.tree.flatten(jax.tree.unflatten(tree, leaves))
