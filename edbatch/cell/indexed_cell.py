"""A cell that indexes a parameter by an integer, so that each node reads one entry.

A mixture of experts may hold its matrices as one array, ``[E, n, m]``, from which a
cell takes ``w[k]`` by an integer that is an external input. Run row by row, each row
would gather its own matrix. The integers are known on the host before anything runs, so
rows are put into chunks by integer, and each chunk reads one entry, as if the entry
were the parameters of one member of a family.

Gain (docs/results.md, "Mixture of experts"): 1,000 rows take 6 ms in such chunks, and
138 ms if each row gathers its matrix.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.cell.binding_time import graph_function
from edbatch.cell.cell_graph import CellGraph, Node, drop_dead
from edbatch.cell.jaxpr import (
    JaxprEqn,
    Literal,
    Var,
    dtype_of,
    is_operation,
    literal_value,
    name_of,
    shape_of,
    variables,
)
from edbatch.cell.primitives import CAST, DYNAMIC_SLICE, INDEX_STEPS
from edbatch.cell.type_call import traced_type
from edbatch.graph.family import Family
from edbatch.graph.node_type import CallTemplate, NodeType
from edbatch.graph.parameters import part_of
from edbatch.graph.type_table import TypeTable

_LEAST_ENTRY = 1 << 14  # bytes; smaller entries, such as word vectors, are gathered
_MOST_STEPS = 12  # equations from the integer to the index of the entry


@dataclass(frozen=True, eq=False)
class IndexedCell:
    """The parameters that a cell indexes, and the input that it indexes them by.

    Attributes:
        slot: The external slot of the integer.
        family: The entries as members.
        function: The cell, taking the parameters of one entry.
    """

    slot: int
    family: Family
    function: Callable[..., Any]

    def members(self, values: np.ndarray) -> np.ndarray:
        """Returns the entries that integers select, with JAX's indexing rules.

        Args:
            values: The integers; ``[n]``.

        Returns:
            Their entries; ``[n] int32``.
        """
        return _entries(values, self.family.size)


def _entries(values: np.ndarray, size: int) -> np.ndarray:
    wide = values.astype(np.int64)
    found = np.clip(np.where(wide < 0, wide + size, wide), 0, size - 1)
    return found.astype(np.int32)


def may_index(node_type: NodeType, types: TypeTable) -> bool:
    """Returns, without a trace, whether a type's cell may index a large parameter.

    Args:
        node_type: The type.
        types: The type's table.

    Returns:
        Whether the cell reads an integer external input and a parameter with large
        entries.
    """
    if node_type.takes_rng or not _integers(node_type, types):
        return False
    parts = [
        part_of(types.params_spec, content._steps)
        for kind, content in node_type.template.leaves
        if kind == "parameter"
    ]
    return any(_is_large(each.shape, each.dtype) for each in jax.tree.leaves(parts))


def indexed_cell(node_type: NodeType, types: TypeTable) -> IndexedCell | None:
    """Finds the parameters that a type's cell indexes by one integer.

    Args:
        node_type: The type.
        types: The type's table.

    Returns:
        The cell as it runs with one entry; None if there is no large parameter that
        the cell only reads in this way.
    """
    template = node_type.template

    graph, specs = traced_type(node_type, types)
    for group in _integers(node_type, types):
        var = graph.inputs[len(specs[0]) + group]
        reads = _reads_of(graph, var)
        if reads:
            positions: dict[Any, int] = {v: k for k, v in enumerate(graph.parameters)}
            leaves = tuple(dict.fromkeys(positions[each.invars[0]] for each in reads))
            size = shape_of(reads[0].invars[0])[0]
            return IndexedCell(
                template.externals[group].slots[0],
                Family(leaves, (), size),
                _function(graph, reads, positions),
            )
    return None


def indexed_type(
    node_type: NodeType, cell: IndexedCell, template: CallTemplate
) -> NodeType:
    """Returns the type whose chunks read one entry each.

    Args:
        node_type: The type as it was recorded.
        cell: The result of `indexed_cell` for the type.
        template: Template of calls with all parameters, operands and external inputs.
    """
    return replace(
        node_type, function=cell.function, template=template, family=cell.family
    )


def _integers(node_type: NodeType, types: TypeTable) -> list[int]:
    """The external groups that are scalar integers."""
    avals = [
        types.avals[node_type.external_kinds[each.slots[0]]]
        for each in node_type.template.externals
    ]
    return [
        k
        for k, (aval, group) in enumerate(
            zip(avals, node_type.template.externals, strict=True)
        )
        if aval.shape == ()
        and not group.stacked
        and jnp.issubdtype(aval.dtype, jnp.integer)
    ]


def _is_large(shape: Sequence[int], dtype: Any) -> bool:
    entry = math.prod(shape[1:]) * np.dtype(dtype).itemsize if len(shape) > 2 else 0
    return entry >= _LEAST_ENTRY


def _reads_of(graph: CellGraph, index: Var) -> list[JaxprEqn]:
    """The equations that read one entry of a large parameter with no other readers.

    All of them select the same entry, from arrays of equal length.
    """
    uses: dict[Var, list[Any]] = {var: [] for var in graph.parameters}
    for node in (*graph.nodes, None):
        read = variables(graph.outputs if node is None else node.invars)
        for var in read:
            if var in uses:
                uses[var].append(node)
    sources = _sources(graph)
    found: list[JaxprEqn] = []
    for var, readers in uses.items():
        if not readers or not _is_large(shape_of(var), dtype_of(var)):
            continue
        if all(_selects(graph, node, var, index, sources) for node in readers):
            found += readers
    lengths = {shape_of(each.invars[0])[0] for each in found}
    return found if len(lengths) == 1 else []


def _sources(graph: CellGraph) -> dict[Any, frozenset[Var]]:
    """The parameters and inputs that each variable is computed from."""
    none: frozenset[Var] = frozenset()
    found: dict[Any, frozenset[Var]] = {
        var: frozenset([var]) for var in (*graph.parameters, *graph.inputs)
    }
    for node in graph.nodes:
        own = none.union(*(found.get(v, none) for v in variables(node.invars)))
        found |= dict.fromkeys(node.outvars, own)
    return found


def _selects(
    graph: CellGraph,
    node: Any,
    table: Var,
    index: Var,
    sources: dict[Any, frozenset[Var]],
) -> bool:
    """Whether an equation reads the entry of a table that the index selects."""
    if not is_operation(node, (DYNAMIC_SLICE,)):
        return False
    start = node.invars[1]
    whole = (1, *shape_of(table)[1:])
    if node.invars[0] is not table or shape_of(node.outvars[0]) != whole:
        return False
    if not isinstance(start, Var) or sources.get(start) != frozenset([index]):
        return False
    size = shape_of(table)[0]
    steps = drop_dead(graph.nodes, [start])
    if len(steps) > _MOST_STEPS or not all(_normalizes(each, size) for each in steps):
        return False
    select = graph_function(graph, [index], steps, [start])
    values = _tried_indexes(np.iinfo(dtype_of(index)), size)
    with jax.ensure_compile_time_eval():
        selected = np.asarray(jax.vmap(select)(values)[0])
    expected = _entries(values, size)
    return bool((np.clip(selected, 0, size - 1) == expected).all())


def _tried_indexes(dtype: np.iinfo[Any], size: int) -> np.ndarray:
    """The integers on which an index computation is compared with JAX's indexing.

    For a small dtype these are all its values. For a large one they are all values near
    the constants that `_normalizes` allows an index to be compared with; beyond these
    the computation keeps its form.
    """
    limit = (_MOST_STEPS + 1) * size + 2 if dtype.bits > 16 else dtype.max + 1
    return np.arange(
        max(dtype.min, -limit), min(dtype.max + 1, limit), dtype=dtype.dtype
    )


def _normalizes(node: Node, size: int) -> bool:
    """Whether an equation may be part of JAX's normalization of an index.

    Such equations select, compare and add integers that are at most the array's size.
    """
    if not is_operation(node, INDEX_STEPS):
        return False
    literals = [each for each in node.invars if isinstance(each, Literal)]
    if any(abs(int(literal_value(each))) > size for each in literals):
        return False
    dtypes = [dtype_of(each) for each in (*node.invars, *node.outvars)]
    if name_of(node) == CAST:
        return np.can_cast(*dtypes) and np.issubdtype(dtypes[1], np.integer)
    return all(np.issubdtype(each, np.integer) or each == np.bool_ for each in dtypes)


def _function(
    graph: CellGraph, reads: Sequence[JaxprEqn], positions: dict[Any, int]
) -> Callable[..., list[Any]]:
    """The cell, with parameters that have one entry where the cell indexes them."""
    entries = [each.outvars[0] for each in reads]
    nodes = [node for node in graph.nodes if not any(node is each for each in reads)]
    run = graph_function(
        graph,
        (*graph.parameters, *graph.inputs, *entries),
        drop_dead(nodes, graph.outputs),
        graph.outputs,
    )

    def function(params: Any, *inputs: Any, **masks: Any) -> list[Any]:
        leaves = jax.tree.leaves(params)
        own = [leaves[positions[each.invars[0]]][None] for each in reads]
        return list(
            run(*leaves, *jax.tree.leaves((inputs, tuple(masks.values()))), *own)
        )

    return function
