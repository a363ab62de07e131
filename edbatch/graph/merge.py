"""Merging recordings into one minibatch, from arrays, with no Python per node."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edbatch.errors import PlanError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.flat_graph import join_flat
from edbatch.graph.node_keys import is_key
from edbatch.graph.output_tree import Outputs, align
from edbatch.graph.type_checks import require_same
from edbatch.graph.type_table import TypeTable

_LIMIT = np.iinfo(np.int32).max


def merge(graphs: Sequence[DataflowGraph]) -> DataflowGraph:
    """Joins graphs of one model into one graph of all their instances.

    Args:
        graphs: At least one recording; the same one may appear several times.

    Returns:
        The graph whose instances are theirs, in order. Linear in nodes, operands and
        bytes of external inputs.

    Raises:
        PlanError: There is no graph, or they belong to different models, or the
            minibatch has more rows than int32 can count.
        RecordingError: Their outputs differ in structure.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> graph = merge([batched.record(1.0), batched.record(5.0)])
        >>> graph.num_nodes, graph.num_instances
        (2, 2)
    """
    if not graphs:
        raise PlanError(
            "a minibatch needs at least one instance but is empty; leave empty"
            " minibatches out"
        )
    if len(graphs) == 1:
        return graphs[0]
    types, tree = graphs[0].types, graphs[0].outputs.tree
    for graph in graphs:
        if graph.types is not types:
            require_same(types, graph.types, "a recording")
        if graph.outputs.tree is not tree:
            return merge(_aligned(graphs))
    num_operands, num_externals, _ = types.counts
    part_kind = [kind if source == "external" else -1 for source, kind in tree.leaves]
    joined = join_flat(
        np.concatenate([each.flat for each in graphs]),
        len(graphs),
        len(types.avals),
        np.array(part_kind + [-2] * len(tree.lists), np.int64),
        num_operands,
        num_externals,
        _external_slots(types),
    )
    check_rows(joined.num_values, "values")
    check_rows(int(joined.pool_rows.max(initial=0)), "external inputs")
    ends = joined.part_start.tolist()
    parts = [joined.parts[a:b] for a, b in itertools.pairwise(ends)]
    columns = len(tree.leaves)
    return DataflowGraph(
        types=types,
        node_type=joined.node_type,
        operands=joined.operands,
        external_rows=joined.external_rows,
        externals=_join_pools(graphs, types, joined.pool_rows),
        outputs=Outputs(tree, tuple(parts[:columns]), tuple(parts[columns:])),
        instance_nodes=joined.instance_nodes,
        num_values=joined.num_values,
    )


def _aligned(graphs: Sequence[DataflowGraph]) -> list[DataflowGraph]:
    """Gives the outputs of graphs one structure."""
    outputs = align([each.outputs for each in graphs])
    return [replace(one, outputs=own) for one, own in zip(graphs, outputs, strict=True)]


def at_places(graph: DataflowGraph, places: Sequence[int]) -> DataflowGraph:
    """Gives the instances of a part of a minibatch their keys of the whole.

    Args:
        graph: The graph of some instances of a minibatch.
        places: The place of each of them in the whole minibatch.

    Returns:
        The graph, whose cells draw the random numbers that the whole's would draw.
    """
    externals = dict(graph.externals)
    for kind, pool in externals.items():
        if is_key(graph.types.avals[kind].dtype):
            instance, call = pool.T
            own = np.asarray(places, pool.dtype)[instance]
            externals[kind] = np.stack([own, call], axis=1)
    return replace(graph, externals=externals)


def check_rows(rows: int, what: str) -> None:
    """Checks that a minibatch can be numbered with int32.

    Args:
        rows: How many there are.
        what: What is counted, for the message.

    Raises:
        PlanError: There are more than int32 can count.
    """
    if rows >= _LIMIT:
        raise PlanError(
            f"a minibatch may have at most {_LIMIT:,} {what} (int32) but this one has"
            f" {rows:,}; use smaller minibatches"
        )


def _join_pools(
    graphs: Sequence[DataflowGraph], types: TypeTable, rows: np.ndarray
) -> dict[int, np.ndarray]:
    """Joins the external inputs of each kind."""
    pools = [each.externals for each in graphs]
    externals = {}
    for kind in np.flatnonzero(rows >= 0).tolist():
        own = [each[kind] for each in pools if kind in each]
        externals[kind] = np.concatenate(own)
        if is_key(types.avals[kind].dtype):
            lengths = [len(each.get(kind, ())) for each in pools]
            instances = np.cumsum([0, *(each.num_instances for each in graphs[:-1])])
            externals[kind][:, 0] += np.repeat(instances.astype(np.uint32), lengths)
    return externals


def _external_slots(types: TypeTable) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first external slot of each type, and the array kind of each slot."""

    def make() -> tuple[np.ndarray, np.ndarray]:
        kinds = [each.external_kinds for each in types.types]
        starts = np.cumsum([0, *map(len, kinds)])
        flat = np.array([kind for each in kinds for kind in each], np.int64)
        return starts.astype(np.int64), flat

    return types.derived(("external slots", len(types)), make)
