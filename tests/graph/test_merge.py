"""Compares merged recordings with a merge written straight from the definition."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noisy_programs import interpret_noisy, sample_noisy
from programs import interpret, make_params, sample_program

import edbatch as eb
from edbatch.errors import PlanError
from edbatch.graph import DataflowGraph, merge
from edbatch.graph.dataflow_graph import operand_nodes, slot_starts
from edbatch.graph.node_keys import is_key
from edbatch.graph.output_tree import Outputs, align
from edbatch.models import get_workload


@eb.cell
def embed(params, index):
    return params["table"][index]


@eb.cell
def total(params, *vectors):
    return sum(vectors) * params["gain"]


PARAMS = {"table": jnp.ones((10, 3)), "gain": jnp.float32(2)}


def nested(params, words):
    """Nested lists, and external inputs among the results."""
    vectors = [[embed(params, each) for each in own] for own in words]
    sums = [total(params, *each) for each in vectors if each]
    given = np.float32(len(words))
    return {
        "vectors": vectors,
        "sums": sums,
        "given": given,
        "last": embed(params, len(words)),
    }


def join_plainly(graphs):
    """Numbers of values, nodes and external rows continue from graph to graph."""
    types = graphs[0].types
    outputs = align([each.outputs for each in graphs], types.avals)
    node_type, operands, rows, instance_nodes = [], [], [], []
    tree = outputs[0].tree
    columns, lengths = [[] for _ in tree.leaves], [[] for _ in tree.lists]
    pools, num_values, num_instances = {}, 0, 0
    for graph, own in zip(graphs, outputs, strict=True):
        first_row = {kind: sum(map(len, each)) for kind, each in pools.items()}
        own_operands = iter(graph.operands.tolist())
        own_rows = iter(graph.external_rows.tolist())
        for t in graph.node_type.tolist():
            node_type.append(t)
            for _ in types.types[t].operand_kinds:
                value = next(own_operands)
                operands.append(value + num_values if value >= 0 else value)
            for kind in types.types[t].external_kinds:
                row = next(own_rows)
                rows.append(row + first_row.get(kind, 0) if row >= 0 else row)
        for place, (source, kind) in enumerate(tree.leaves):
            shift = num_values if source == "value" else first_row.get(kind, 0)
            columns[place] += (own.columns[place] + shift).tolist()
        for place, each in enumerate(own.lengths):
            lengths[place] += each.tolist()
        for kind, pool in graph.externals.items():
            if is_key(types.avals[kind].dtype):
                pool = pool + np.array([num_instances, 0], np.uint32)
            pools.setdefault(kind, []).append(pool)
        instance_nodes += graph.instance_nodes.tolist()
        num_values += graph.num_values
        num_instances += graph.num_instances
    as_int32 = [tuple(np.array(x, np.int32) for x in own) for own in (columns, lengths)]
    return DataflowGraph(
        types=types,
        node_type=np.array(node_type, np.int32),
        operands=np.array(operands, np.int32),
        external_rows=np.array(rows, np.int32),
        externals={kind: np.concatenate(each) for kind, each in pools.items()},
        outputs=Outputs(tree, *as_int32),
        instance_nodes=np.array(instance_nodes, np.int32),
        num_values=num_values,
    )


def assert_same_graph(found, expected):
    for name in ("node_type", "operands", "external_rows", "instance_nodes"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == other.dtype, name
        np.testing.assert_array_equal(one, other, name)
    assert found.num_values == expected.num_values
    assert found.outputs.tree == expected.outputs.tree
    for name in ("columns", "lengths"):
        pairs = zip(
            getattr(found.outputs, name), getattr(expected.outputs, name), strict=True
        )
        for one, other in pairs:
            np.testing.assert_array_equal(one, other, name)
    assert found.externals.keys() == expected.externals.keys()
    for kind, pool in expected.externals.items():
        assert found.externals[kind].dtype == pool.dtype
        np.testing.assert_array_equal(found.externals[kind], pool)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("model", "params", "sample"),
    [
        (interpret, make_params(), lambda rng: sample_program(rng, 20)),
        (interpret_noisy, make_params(), lambda rng: sample_noisy(rng, 15)),
        (
            nested,
            PARAMS,
            lambda rng: [
                rng.integers(10, size=rng.integers(4)).tolist()
                for _ in range(rng.integers(4))
            ],
        ),
    ],
    ids=["programs", "random numbers", "lists"],
)
def test_recordings_are_joined_as_defined(model, params, sample, seed):
    rng = np.random.default_rng(seed)
    minibatch = [sample(rng) for _ in range(rng.integers(2, 12))]
    batched = eb.batch(model, params=params)
    recordings = [batched.record(each) for each in minibatch]
    assert_same_graph(merge(recordings), join_plainly(recordings))


def test_a_part_of_a_minibatch_may_be_joined_already():
    batched = eb.batch(nested, params=PARAMS)
    words = [[[1, 2], []], [], [[3]], [[4, 5, 6]]]
    parts = [batched.graph(words[:2]), batched.graph(words[2:3])]
    joined = merge([merge(parts), batched.graph(words[3:])])
    assert_same_graph(joined, join_plainly([*parts, batched.graph(words[3:])]))


def test_more_rows_than_int32_counts_are_refused(monkeypatch):
    batched = eb.batch(nested, params=PARAMS)
    kept = [batched.record([[1, 2]]) for _ in range(4)]
    module = importlib.import_module("edbatch.graph.merge")
    monkeypatch.setattr(module, "_LIMIT", 16)
    with pytest.raises(PlanError, match="at most 16 values"):
        merge(kept)
    monkeypatch.setattr(module, "_LIMIT", 17)
    assert merge(kept).num_values == 16


def test_what_is_joined_is_not_pickled():
    recording = eb.batch(nested, params=PARAMS).record([[1, 2]])
    assert recording.joinable.flat.dtype == np.int32
    assert "joinable" in vars(recording)
    assert "joinable" not in recording.__getstate__()


@pytest.mark.parametrize("name", ["tree-lstm", "lattice-lstm", "bilstm-tagger"])
def test_what_joining_finds_with_the_graph_is_what_follows_from_it(name):
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(0), 8)
    batched = eb.batch(workload.model, params=params)
    instances = workload.sample(np.random.default_rng(0), 9)
    graph = merge([batched.record(each) for each in instances])
    known = graph.structure
    found = slot_starts(graph.node_type, *graph.types.counts)
    for own, expected in zip(vars(graph)["_starts"], found, strict=True):
        np.testing.assert_array_equal(own, expected)
        assert own.dtype == expected.dtype
    nodes = operand_nodes(found[2], graph.operands)
    np.testing.assert_array_equal(known.operand_node, nodes)
    assert known.operand_node.dtype == nodes.dtype


def test_pools_of_small_and_of_large_rows_are_joined():
    """Rows of a few 4-byte words are copied with the graph, others from arrays."""

    @eb.cell
    def read(params, word, pair, wide, narrow):
        return params * (word + pair.sum() + wide.sum() + narrow.sum())

    def model(params, instance):
        return [read(params, *each) for each in instance]

    def inputs(rng):
        return (
            np.float32(rng.normal()),
            rng.integers(9, size=2).astype(np.uint32),
            rng.normal(size=7).astype(np.float32),
            rng.integers(9, size=2).astype(np.int8),
        )

    rng = np.random.default_rng(0)
    instances = [[inputs(rng) for _ in range(n)] for n in (3, 1, 2)]
    batched = eb.batch(model, params=jnp.float32(2))
    merged = merge([batched.record(each) for each in instances])
    together = batched.graph(instances)
    assert list(merged.externals) == list(together.externals)
    assert {pool.dtype.str for pool in merged.externals.values()} == {
        "<f4",
        "<u4",
        "|i1",
    }
    for kind, pool in together.externals.items():
        np.testing.assert_array_equal(merged.externals[kind], pool)
        assert merged.externals[kind].dtype == pool.dtype
