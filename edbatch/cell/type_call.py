"""The cell of a type as a function of flat arrays, and what tracing it gives."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
from jax.sharding import AbstractMesh, use_abstract_mesh

from edbatch.cell.cell_graph import CellGraph, trace_cell
from edbatch.graph.node_type import NodeType, input_specs
from edbatch.graph.type_table import TypeTable

Specs = tuple[list[Any], list[Any], list[Any]]  # operands, external inputs, masks

# A cell is traced once for all programs, though the first may run on several devices:
# a function traced there is bound to their mesh.
NO_MESH = AbstractMesh((), ())

# Settings of JAX that a traced cell depends on.
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_default_prng_impl",
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
    "jax_softmax_custom_jvp",
)


def trace_settings() -> tuple[Any, ...]:
    """Returns the settings of JAX under which a cell is traced in this thread."""
    return tuple(getattr(jax.config, name, None) for name in _SETTINGS)


def type_call(
    node_type: NodeType, types: TypeTable
) -> tuple[Callable[..., list[Any]], Specs]:
    """Returns the cell of a type, and what it takes beside the parameters.

    Args:
        node_type: The type.
        types: The table that it is in.

    Returns:
        ``function(params, operands, externals, masks)`` for one batch row, which
        returns the list of the output's arrays; and the arrays that it takes, as
        ``jax.ShapeDtypeStruct``.
    """

    def function(params: Any, *inputs: Any) -> list[Any]:
        output = node_type.template.call(node_type.function, params, *inputs)
        return jax.tree.leaves(output)

    specs = input_specs(
        node_type.template,
        node_type.operand_kinds,
        node_type.external_kinds,
        types.avals,
    )
    return function, specs


def traced_type(node_type: NodeType, types: TypeTable) -> tuple[CellGraph, Specs]:
    """Traces the cell of a type, once for all who ask.

    Args:
        node_type: The type.
        types: The table that it is in.

    Returns:
        The cell, of the parameters that `NodeType.params_spec` describes; and what it
        takes beside them, as `type_call` returns it.
    """
    template = node_type.template.with_exact_constants()
    leaves = tuple(
        (kind, content._steps if kind == "parameter" else content)
        for kind, content in template.leaves
    )
    key = (
        id(node_type.function),
        (template.treedef, leaves),
        (template.operands, template.externals, template.paddings),
        (node_type.operand_kinds, node_type.external_kinds),
        node_type.family,
        trace_settings(),
    )

    found = types.traces.get(key)
    if found is None:
        function, specs = type_call(node_type, types)
        params_spec = node_type.params_spec(types.params_spec)
        with use_abstract_mesh(NO_MESH):
            graph, _ = trace_cell(function, params_spec, specs)
        made = graph, specs, node_type.function  # which so keeps its number
        found = types.traces.setdefault(key, made)
    return found[:2]


def trace_at_call(node_type: NodeType, types: TypeTable) -> None:
    """Traces the cell of a type that is called for the first time.

    What it closes over may be another thing once the model has run: the variable of a
    loop in which it was made, say.

    Args:
        node_type: The type.
        types: The table that it is in.
    """
    traced_type(node_type, types)
    if node_type.takes_rng and not node_type.needs_rng:
        with suppress(Exception):  # is raised where the model runs without a key
            traced_type(node_type.without_rng(), types)
