import numpy as np
import pytest
from hypothesis import given
from random_graphs import all_graphs, build, graphs, long_chain
from schedule_oracles import Naive, brute_lower_bound, fewest_batches

from edbatch.errors import PlanError
from edbatch.schedule import longest_chains, lower_bound
from edbatch.schedule.examples import chain, from_operands, tree


@pytest.mark.parametrize(
    ("structure", "expected"),
    [
        (chain("a"), [1]),
        (chain("aba"), [2, 1]),
        (tree("((ab)cb)c"), [1, 1, 2]),
        # Independent chains: the longest counts.
        (from_operands("aaab", [[], [0], [], [2]]), [2, 1]),
        # The longest paths of the two types may differ.
        (from_operands("aabb", [[], [0], [], [2]]), [2, 2]),
    ],
)
def test_longest_chains(structure, expected):
    assert longest_chains(structure).tolist() == expected


def test_all_small_graphs():
    for structure in all_graphs(4):
        graph = Naive(structure)
        bound = lower_bound(structure)
        assert bound == brute_lower_bound(graph)
        assert bound <= fewest_batches(graph)(frozenset())


@given(graphs(max_nodes=14))
def test_random_graphs(structure):
    assert lower_bound(structure) == brute_lower_bound(Naive(structure))


@given(graphs(num_types=3), graphs(num_types=3))
def test_of_independent_graphs_the_larger_counts(one, other):
    n = one.num_nodes
    operands = np.where(other.operand_node >= 0, other.operand_node + n, -1)
    joined = build(
        [*one.node_type, *other.node_type],
        [
            *np.split(one.operand_node, one.operand_start[1:-1])[:n],
            *np.split(operands, other.operand_start[1:-1])[: other.num_nodes],
        ],
        3,
    )
    np.testing.assert_array_equal(
        longest_chains(joined), np.maximum(longest_chains(one), longest_chains(other))
    )


def test_types_without_nodes_count_nothing():
    assert longest_chains(build([1], [[]], 3)).tolist() == [0, 1, 0]
    assert lower_bound(build([], [], 2)) == 0


def test_a_deep_chain():
    assert longest_chains(long_chain(100_000, 4)).tolist() == [25_000] * 4


@pytest.mark.parametrize("count", [longest_chains, lower_bound])
def test_what_is_no_graph_is_refused(count):
    with pytest.raises(PlanError, match="what has a lower bound is the structure of a"):
        count(3)
