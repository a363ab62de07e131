import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import all_graphs, build, graphs, long_chain
from schedule_oracles import Naive, fewest_batches

from edbatch.schedule import HeadState, run_type, start_frontier
from edbatch.schedule.sufficient_condition import (
    best_ratio,
    new_heads,
    ratio,
    update_heads,
)


def check_heads(heads: HeadState, state, graph: Naive, done: set[int]) -> None:
    for t in range(graph.num_types):
        assert heads.heads[t] == len(graph.heads(done, t))
        assert abs(ratio(heads, state, t) - float(graph.ratio(done, t))) < 1e-12
    if len(done) < graph.n:
        best = max(range(graph.num_types), key=lambda t: (graph.ratio(done, t), -t))
        assert best_ratio(heads, state) == best


@given(graphs(), st.randoms(use_true_random=False))
def test_heads_are_those_of_the_definition_at_every_step(structure, random):
    graph = Naive(structure)
    state = start_frontier(structure)
    heads = new_heads(state)
    done: set[int] = set()
    check_heads(heads, state, graph, done)
    while len(done) < graph.n:
        chosen = random.choice(sorted(graph.frontier(done)))
        done |= graph.frontier(done)[chosen]
        update_heads(heads, state, chosen, *run_type(state, chosen))
        check_heads(heads, state, graph, done)
        check_heads(new_heads(state), state, graph, done)


def test_where_the_ratio_is_one_some_best_schedule_runs_that_type():
    met = 0
    for structure in all_graphs(5):
        if not structure.num_nodes:
            continue
        graph = Naive(structure)
        fewest = fewest_batches(graph)
        state = start_frontier(structure)
        heads = new_heads(state)
        for t, ready in graph.frontier(set()).items():
            if ratio(heads, state, t) == 1:
                met += 1
                assert fewest(ready) + 1 == fewest(frozenset())
    assert met > 10_000


def test_below_one_the_largest_ratio_can_be_wrong():
    #  a0   b1        Both types have two heads (a0, a2 and b1, b4), one of them ready.
    #  |    |         With b1 first, 3 batches suffice: b1, then a0 a2, then b3 b4.
    #  b4   a2 - b3
    structure = build([0, 1, 0, 1, 1], [[], [], [1], [2], [0]], 2)
    state = start_frontier(structure)
    heads = new_heads(state)
    assert [ratio(heads, state, t) for t in (0, 1)] == [1 / 2, 1 / 2]
    fewest = fewest_batches(Naive(structure))
    assert fewest(frozenset()) == 3
    assert fewest(frozenset({0})) == 3


def test_of_equal_ratios_the_first_type_is_best():
    state = start_frontier(build([1, 0], [[], []], 2))
    assert best_ratio(new_heads(state), state) == 0


def test_without_nodes_there_is_no_best():
    state = start_frontier(build([], [], 2))
    heads = new_heads(state)
    assert best_ratio(heads, state) < 0
    assert ratio(heads, state, 0) == 0


def test_a_deep_chain():
    state = start_frontier(long_chain(100_000))
    heads = new_heads(state)
    for step in range(20):
        chosen = step % 2
        update_heads(heads, state, chosen, *run_type(state, chosen))
        assert heads.heads.tolist() == [1, 1]


def test_news_travels_down_a_deep_chain_of_another_type():
    #  a - b - b - … - b - a: running the first a makes the last one a head.
    n = 100_000
    structure = long_chain(n, 1)
    types = np.ones(n, np.int32)
    types[[0, -1]] = 0
    structure = build(types, [[], *([v] for v in range(n - 1))], 2)
    state = start_frontier(structure)
    heads = new_heads(state)
    assert heads.heads.tolist() == [1, 1]
    update_heads(heads, state, 0, *run_type(state, 0))
    assert heads.heads.tolist() == [1, 1]
    assert ratio(heads, state, 1) == 1
