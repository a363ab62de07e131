"""Merges recordings into one minibatch by array operations, with no Python per node."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from edbatch.errors import PlanError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.flat_graph import Joined, join_flat, words_of_row
from edbatch.graph.node_keys import is_key
from edbatch.graph.output_tree import Outputs, OutputTree, align
from edbatch.graph.type_checks import require_same
from edbatch.graph.type_table import TypeTable

_LIMIT = np.iinfo(np.int32).max

# A minibatch has dozens of recordings; these visit all of them without a Python loop.
_types_of = attrgetter("types")
_joinable_of = attrgetter("joinable")


def merge(graphs: Sequence[DataflowGraph]) -> DataflowGraph:
    """Joins graphs of one model into one graph of all their instances.

    Args:
        graphs: At least one recording; the same one may appear several times.

    Returns:
        The graph of all their instances, in order. Takes time linear in nodes, operands
        and bytes of external inputs.

    Raises:
        PlanError: There is no graph, the graphs belong to different models, or the
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
    tables, trees, flats, pools = zip(*map(_joinable_of, graphs), strict=True)
    types: TypeTable = tables[0]
    tree: OutputTree = trees[0]
    for other in {*tables}:
        require_same(types, other, "a recording")
    if len({*map(id, trees)}) > 1:
        return merge(_aligned(graphs))
    part_kind = [kind if source == "external" else -1 for source, kind in tree.leaves]
    joined = join_flat(
        np.concatenate(flats),
        len(graphs),
        len(types.avals),
        np.array(part_kind + [-2] * len(tree.lists), np.int64),
        *types.counts,
        types.external_kinds,
    )
    check_rows(joined.num_values, "values")
    check_rows(int(joined.pool_rows.max(initial=0)), "external inputs")
    ends = joined.part_start.tolist()
    parts = [joined.parts[a:b] for a, b in itertools.pairwise(ends)]
    columns = len(tree.leaves)
    found = DataflowGraph(
        types=types,
        node_type=joined.node_type,
        operands=joined.operands,
        external_rows=joined.external_rows,
        externals=_join_pools(graphs, pools, types, joined),
        outputs=Outputs(tree, tuple(parts[:columns]), tuple(parts[columns:])),
        instance_nodes=joined.instance_nodes,
        num_values=joined.num_values,
    )
    found.set_structure(joined.starts, joined.operand_node)
    return found


def tables_of(instances: Sequence[Any]) -> list[TypeTable]:
    """Lists the type tables of the recordings in a minibatch.

    Args:
        instances: Instances, recordings, or both.

    Returns:
        The tables, each once.
    """
    if not are_recordings(instances):
        instances = [each for each in instances if isinstance(each, DataflowGraph)]
    return list(dict.fromkeys(map(_types_of, instances)))


def are_recordings(instances: Sequence[Any]) -> bool:
    """Tells whether all instances of a minibatch are recordings."""
    return set(map(type, instances)) == {DataflowGraph}


def _aligned(graphs: Sequence[DataflowGraph]) -> list[DataflowGraph]:
    """Gives the outputs of graphs a common structure."""
    outputs = align([each.outputs for each in graphs], graphs[0].types.avals)
    return [replace(one, outputs=own) for one, own in zip(graphs, outputs, strict=True)]


def at_places(graph: DataflowGraph, places: Sequence[int]) -> DataflowGraph:
    """Gives the instances of a part of a minibatch the random keys of the whole.

    Args:
        graph: The graph of some instances of a minibatch.
        places: Position of each of these instances in the whole minibatch.

    Returns:
        The graph, whose cells draw the same random numbers as in the whole minibatch.
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
        rows: Number of rows.
        what: What is counted, for the message.

    Raises:
        PlanError: There are more rows than int32 can count.
    """
    if rows >= _LIMIT:
        raise PlanError(
            f"a minibatch may have at most {_LIMIT:,} {what} (int32) but this one has"
            f" {rows:,}; use smaller minibatches"
        )


def _join_pools(
    graphs: Sequence[DataflowGraph],
    pools: Sequence[Mapping[int, np.ndarray]],
    types: TypeTable,
    joined: Joined,
) -> dict[int, np.ndarray]:
    """Concatenates the external inputs of each kind."""
    externals = {}
    starts = joined.word_start.tolist()
    for kind, rows in enumerate(joined.pool_rows.tolist()):
        if rows < 0:
            continue
        aval = types.kinds.pool_aval(kind)
        words = joined.words[starts[kind] : starts[kind + 1]]
        if rows and len(words) == rows * words_of_row(aval.shape, aval.dtype) > 0:
            externals[kind] = words.view(aval.dtype).reshape(rows, *aval.shape)
        else:
            own = [each[kind] for each in pools if kind in each]
            externals[kind] = np.concatenate(own)
        if is_key(types.avals[kind].dtype):
            lengths = [len(each.get(kind, ())) for each in pools]
            instances = np.cumsum([0, *(each.num_instances for each in graphs[:-1])])
            externals[kind][:, 0] += np.repeat(instances.astype(np.uint32), lengths)
    return externals
