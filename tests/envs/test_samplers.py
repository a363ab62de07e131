from functools import partial

import numpy as np
import pytest

from edbatch.envs import (
    join_instances,
    sample_dag_structure,
    sample_lattice_structure,
    sample_tree_structure,
)
from edbatch.errors import PlanError
from edbatch.graph import TypeKey
from edbatch.graph.dataflow_graph import MISSING
from edbatch.policies import Greedy
from edbatch.schedule import check_schedule, lower_bound

SAMPLERS = [
    sample_tree_structure,
    partial(sample_tree_structure, kinds=3, max_leaves=40),
    sample_lattice_structure,
    partial(sample_lattice_structure, words_per_character=2.0),
    sample_dag_structure,
    partial(sample_dag_structure, instances=4, nodes=30, types=6, max_arity=5),
]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("seed", range(5))
def test_what_is_sampled_is_a_graph(sampler, seed):
    graph = sampler(np.random.default_rng(seed))
    same = sampler(np.random.default_rng(seed))
    other = sampler(np.random.default_rng(seed + 99))
    arity = np.array([key.arity for key in graph.type_keys])
    np.testing.assert_array_equal(np.diff(graph.operand_start), arity[graph.node_type])
    assert graph.operand_start[-1] == len(graph.operand_node)
    reader = np.repeat(np.arange(graph.num_nodes), arity[graph.node_type])
    assert (graph.operand_node < reader).all()
    assert (graph.operand_node >= -1).all()
    instance = np.repeat(np.arange(len(graph.instance_nodes)), graph.instance_nodes)
    present = graph.operand_node >= 0
    np.testing.assert_array_equal(
        instance[reader[present]], instance[graph.operand_node[present]]
    )
    assert graph.instance_nodes.sum() == graph.num_nodes
    for name in ("node_type", "operand_start", "operand_node", "instance_nodes"):
        assert getattr(graph, name).dtype == np.int32
        np.testing.assert_array_equal(getattr(graph, name), getattr(same, name))
    assert not np.array_equal(graph.operand_node, other.operand_node)
    check_schedule(Greedy().schedule(graph), graph)


def test_trees_have_one_root_each():
    graph = sample_tree_structure(np.random.default_rng(0), instances=20, kinds=2)
    leaves, classifiers, *composes = np.bincount(graph.node_type, minlength=4)
    assert (leaves, classifiers) == (sum(composes) + 20, 20)
    readers = np.bincount(graph.operand_node, minlength=graph.num_nodes)
    np.testing.assert_array_equal(readers, graph.node_type != 1)


def test_lattices_are_chains_of_characters_with_words():
    graph = sample_lattice_structure(
        np.random.default_rng(0), instances=100, max_characters=60
    )
    names = [graph.type_keys[t].cell for t in graph.node_type]
    characters = names.count("character")
    assert names.count("out") == characters
    assert 0.2 < names.count("word") / characters < 0.3
    lengths = lower_bound(graph)
    assert lengths > 60


def test_dags_have_missing_and_repeated_operands():
    graph = sample_dag_structure(np.random.default_rng(0), nodes=300)
    assert (graph.operand_node == -1).any()
    twice = [
        len(set(each.tolist())) < len(each)
        for each in np.split(graph.operand_node, graph.operand_start[1:-1])
    ]
    assert any(twice)


def test_join_instances():
    keys = (TypeKey("a", "", 0), TypeKey("b", "", 2))
    graph = join_instances(keys, [[(0, []), (1, [0, -1])], [(0, []), (1, [0, 0])]])
    assert graph.node_type.tolist() == [0, 1, 0, 1]
    assert graph.operand_start.tolist() == [0, 0, 2, 2, 4]
    assert graph.operand_node.tolist() == [0, -1, 2, 2]
    assert graph.instance_nodes.tolist() == [2, 2]
    assert join_instances(keys, []).num_nodes == 0


LEAF, PAIR = TypeKey("leaf", "", 0), TypeKey("pair", "", 2)


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([[(2, [])]], "among 2 types, .* that of node 0 of instance 0 is 2"),
        ([[(0, [])], [(-3, [])]], "node 0 of instance 1 is -3"),
        ([[(0, []), (1, [0, 1])]], "node 1 of instance 0 reads 1; list nodes in topo"),
        ([[(0, []), (1, [0, 7])]], "node 1 of instance 0 reads 7"),
        ([[(0, []), (1, [0, -2])]], "node 1 of instance 0 reads -2"),
    ],
)
def test_what_is_no_graph_is_refused(instances, message):
    with pytest.raises(PlanError, match=message):
        join_instances((LEAF, PAIR), instances)


def test_operands_may_be_missing():
    graph = join_instances((LEAF, PAIR), [[(0, []), (1, [MISSING, 0])]])
    assert Greedy().schedule(graph).num_batches == 2


@pytest.mark.parametrize(
    ("sampler", "options", "message"),
    [
        (sample_tree_structure, {"max_leaves": 0}, "max_leaves of trees is a whole n"),
        (
            sample_tree_structure,
            {"kinds": 0},
            "kinds of trees is .* 1 or more",
        ),
        (
            sample_tree_structure,
            {"instances": -1},
            "instances of trees .* 0 or more",
        ),
        (sample_lattice_structure, {"max_characters": 0}, "max_characters of lattices"),
        (
            sample_lattice_structure,
            {"max_words": 1.5},
            "max_words of lattices is a w",
        ),
        (
            sample_lattice_structure,
            {"words_per_character": float("nan")},
            "words_per_character of lattices is a finite number, 0 or more, but this",
        ),
        (sample_dag_structure, {"types": 0}, "types of graphs is a whole number, 1 or"),
        (sample_dag_structure, {"arities": []}, "types of graphs is .* but this is 0"),
        (sample_dag_structure, {"nodes": "5"}, "nodes of graphs is a whole number, 0"),
        (sample_dag_structure, {"missing": -1}, "missing of graphs is a finite number"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sampler, options, message):
    with pytest.raises(PlanError, match=message):
        sampler(np.random.default_rng(0), **options)
