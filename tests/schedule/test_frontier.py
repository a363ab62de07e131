import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import build, graphs, long_chain
from schedule_oracles import Naive, frontier_of

from edbatch.schedule import run_type, start_frontier
from edbatch.schedule.frontier import frontier_size, remaining_size


@given(graphs(), st.randoms(use_true_random=False))
def test_frontier_is_that_of_the_definition_at_every_step(structure, random):
    graph = Naive(structure)
    state = start_frontier(structure)
    done: set[int] = set()
    while len(done) < graph.n:
        expected = graph.frontier(done)
        assert frontier_of(state) == expected
        for t in range(graph.num_types):
            assert frontier_size(state, t) == len(expected.get(t, ()))
            left = [v for v in range(graph.n) if graph.types[v] == t and v not in done]
            assert remaining_size(state, t) == len(left)
        chosen = random.choice(sorted(expected))
        first, last = run_type(state, chosen)
        assert set(state.queue[first:last].tolist()) == expected[chosen]
        done |= expected[chosen]
    assert frontier_of(state) == {}
    assert sorted(state.queue.tolist()) == list(range(graph.n))


def test_an_execution_leaves_the_graph_as_it_was():
    structure = build([0, 0, 1], [[], [], [0, 1]], 2)
    before = [each.copy() for each in structure.consumers]
    run_type(start_frontier(structure), 0)
    for old, new in zip(before, structure.consumers, strict=True):
        np.testing.assert_array_equal(old, new)


def test_nodes_join_in_the_order_in_which_their_operands_ran():
    #  0 1 2      types 0: leaves
    #  |  \|
    #  3   4      types 1; node 3 is ready before node 4
    structure = build([0, 0, 0, 1, 1], [[], [], [], [0], [1, 2]], 2)
    state = start_frontier(structure)
    run_type(state, 0)
    first, last = run_type(state, 1)
    assert state.queue[first:last].tolist() == [3, 4]


def test_a_node_that_reads_another_twice_waits_for_it_once():
    state = start_frontier(build([0, 0], [[], [0, 0]], 1))
    assert frontier_of(state) == {0: {0}}
    run_type(state, 0)
    assert frontier_of(state) == {0: {1}}


def test_a_missing_operand_is_not_waited_for():
    assert frontier_of(start_frontier(build([0], [[-1, -1]], 1))) == {0: {0}}


def test_a_graph_without_nodes_has_an_empty_frontier():
    assert frontier_of(start_frontier(build([], [], 3))) == {}


def test_a_deep_chain():
    state = start_frontier(long_chain(100_000))
    for _ in range(10):
        assert run_type(state, 0)[1] - run_type(state, 1)[0] <= 1
    assert frontier_of(state) == {0: {20}}
