import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.benchmark.staging import next_power, pad_to_power, stage, take
from edbatch.data import Tree
from edbatch.models import get_workload


def tree_of(text):
    """Parses ``((ab)c)``, where a letter is a leaf."""
    stack = [[]]
    for sign in text:
        if sign == "(":
            stack.append([])
        elif sign == ")":
            children = stack.pop()
            stack[-1].append(Tree(children=children))
        else:
            stack[-1].append(Tree(word=ord(sign) - ord("a")))
    [[tree]] = stack
    return tree


def staged(*texts):
    workload = get_workload("tree-lstm", vocabulary_size=9)
    params = jax.eval_shape(lambda key: workload.init_params(key, 2), jax.random.key(0))
    batched = eb.batch(workload.model, params=params)
    return stage(batched.graph([tree_of(each) for each in texts]))


def names(groups):
    return [(each.node_type.key.cell, len(each.nodes)) for each in groups]


def test_stages_of_trees():
    #   leaves      levels                  classifiers, even of the lone leaf
    #   a b c d     (ab)  (cd)
    #   e f g             ((ab)(cd))
    #   h           (ef)
    #                     ((ef)g)
    stages = staged("((ab)(cd))", "((ef)g)", "h")
    assert names(stages.sources) == [("leaf", 8)]
    assert names(stages.levels) == [("compose", 3), ("compose", 2)]
    assert names(stages.sinks) == [("classify", 3)]


def test_stages_hold_every_node_once_and_operands_before_readers():
    stages = staged("(((ab)c)(d(ef)))", "(a(b(c(de))))", "(ab)")
    graph = stages.graph
    order = np.concatenate([each.nodes for each in stages.groups])
    assert sorted(order.tolist()) == list(range(graph.num_nodes))
    ready = np.zeros(graph.num_values, bool)
    for group in stages.groups:
        assert ready[stages.operands(group)].all()
        for node in group.nodes:
            ready[graph.value_start[node] : graph.value_start[node + 1]] = True


def test_a_lone_leaf_has_no_levels():
    stages = staged("a")
    assert names(stages.groups) == [("leaf", 1), ("classify", 1)]


def test_a_source_that_no_node_reads_is_still_a_source():
    @eb.cell
    def look_up(table, word):
        return table[word]

    batched = eb.batch(look_up, params=jax.ShapeDtypeStruct((4, 2), jnp.float32))
    stages = stage(batched.graph([0, 3, 1]))
    assert names(stages.sources) == [("look_up", 3)]
    assert stages.sinks == ()


@pytest.mark.parametrize("rows", [[2, 3, 4], [3], [4, 3], [1, 1], [0, 2]])
def test_take_reads_constant_rows(rows):
    table = jnp.arange(10.0).reshape(5, 2)
    expected = np.asarray(table)[rows]
    for index in (np.array(rows), jnp.array(rows)):
        np.testing.assert_array_equal(take(table, index), expected)


def test_consecutive_rows_are_a_slice():
    table = jnp.zeros((5, 2))

    def primitives(rows):
        jaxpr = jax.make_jaxpr(lambda each: take(each, np.array(rows)))(table)
        return {each.primitive.name for each in jaxpr.eqns}

    assert "gather" not in primitives([1, 2, 3])
    assert "gather" in primitives([1, 3, 2])


def test_powers():
    assert [next_power(size) for size in (1, 2, 3, 4, 5, 1025)] == [1, 2, 4, 4, 8, 2048]
    assert [len(pad_to_power(np.ones((n, 2)))) for n in (0, 64, 65)] == [64, 64, 128]
    padded = pad_to_power(np.ones((3, 2)))
    assert padded[:3].all()
    assert not padded[3:].any()
