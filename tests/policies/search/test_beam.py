import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import all_graphs, build, graphs, long_chain
from schedule_oracles import Naive, fewest_batches

from edbatch.envs import sample_dag_structure, sample_lattice_structure
from edbatch.envs.samplers import join_instances
from edbatch.graph import TypeKey
from edbatch.policies.search.beam import EXHAUSTED, FOUND, STOPPED, search_beam
from edbatch.policies.search.beam_search import schedule_of
from edbatch.policies.search.instance_graph import instance_graph
from edbatch.policies.search.instance_states import new_states
from edbatch.schedule import check_schedule, lower_bound


def search(structure, width, limit=None, weight=None, log2_p=3, **others):
    graph = instance_graph(structure)
    states, start = new_states(graph)
    if limit is None:
        limit = structure.num_nodes + 1
    if weight is None:
        weight = np.ones(structure.num_types + 1)
    return search_beam(graph, states, start, weight, log2_p, width, limit, **others)


def check(structure, result, limit, fewest):
    """Checks all claims of a result against the optimal number of batches."""
    if result.outcome == FOUND:
        schedule = schedule_of(structure, result.actions)
        check_schedule(schedule, structure)
        assert fewest <= schedule.num_batches == len(result.actions) < limit
        if result.is_complete:
            assert schedule.num_batches == fewest
    else:
        assert result.outcome == EXHAUSTED
        assert result.actions.tolist() == []
        if result.is_complete:
            assert limit <= fewest


def check_widths_and_limits(structure, widths=(1, 2, 3), **others):
    """Checks narrow searches, which may miss the optimum, and exhaustive ones."""
    fewest = fewest_batches(Naive(structure))(frozenset())
    for limit in {structure.num_nodes + 1, fewest + 1, fewest, max(0, fewest - 1)}:
        for width in widths:
            result = search(structure, width, limit, **others)
            check(structure, result, limit, fewest)
        result = search(structure, 100, limit, **others)
        check(structure, result, limit, fewest)
        assert result.is_complete
        assert result.outcome == (FOUND if limit > fewest else EXHAUSTED)


def test_all_small_graphs():
    for structure in all_graphs(3):
        check_widths_and_limits(structure, (1, 2))
    for structure in all_graphs(4):
        limit = structure.num_nodes + 1
        fewest = fewest_batches(Naive(structure))(frozenset())
        for width in (1, 100):
            check(structure, search(structure, width), limit, fewest)


@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.lists(st.sampled_from([0.0, 0.3, 1.0, 5.0]), min_size=5, max_size=5),
    st.integers(1, 4),
)
def test_claims_are_true_of_random_minibatches(seed, types, weight, log2_p):
    rng = np.random.default_rng(seed)
    instances, missing = int(rng.integers(1, 4)), rng.uniform(0, 0.7)
    structure = sample_dag_structure(
        rng, instances=instances, nodes=5, types=types, missing=missing
    )
    weight = np.array(weight[: types + 1])
    check_widths_and_limits(structure, weight=weight, log2_p=log2_p)


@given(graphs(max_nodes=11))
def test_claims_are_true_of_graphs_with_repeated_operands(structure):
    check_widths_and_limits(structure)


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_claims_are_true_where_there_are_many_types(seed, width):
    # More types than the 64 that fit into a word.
    rng = np.random.default_rng(seed)
    small = sample_dag_structure(rng, instances=2, nodes=5, types=4)
    keys = (*(TypeKey(f"more{k}", "", 0) for k in range(63)), *small.type_keys)
    structure = replace(small, type_keys=keys, node_type=small.node_type + np.int32(63))
    check_widths_and_limits(structure, (width,))


def test_a_wide_beam_finds_what_a_narrow_one_misses():
    rng = np.random.default_rng(5)
    structure = sample_lattice_structure(rng, instances=8)
    found = [len(search(structure, width).actions) for width in (1, 4, 64, 512)]
    assert found[0] > found[-1] >= lower_bound(structure)


def test_a_width_gives_the_same_whatever_was_searched_before():
    rng = np.random.default_rng(1)
    structure = sample_lattice_structure(rng, instances=8)
    first = search(structure, 7)
    graph = instance_graph(structure)
    states, start = new_states(graph)
    for width in (50, 1, 7, 7):
        result = search_beam(
            graph, states, start, np.ones(structure.num_types + 1), 3, width, 999
        )
        states = result.states
        if width == 7:
            assert result.actions.tolist() == first.actions.tolist()
            assert result.is_complete == first.is_complete


def test_a_part_of_the_instances():
    #   a b    b a    c: each alone, and the first two together
    keys = tuple(TypeKey(letter, "", 0) for letter in "abc")
    structure = join_instances(
        keys, [[(0, []), (1, [0])], [(1, []), (0, [0])], [(2, [])]]
    )
    graph = instance_graph(structure)
    states, start = new_states(graph)
    for part, actions in [([0], [0, 1]), ([1], [1, 0]), ([2], [2]), ([], [])]:
        result = search_beam(graph, states, start[part], np.ones(4), 3, 8, 9)
        assert (result.outcome, result.actions.tolist()) == (FOUND, actions)
    result = search_beam(graph, states, start[[0, 1]], np.ones(4), 3, 8, 9)
    assert len(result.actions) == 3


@pytest.mark.parametrize("sizes", [[], [0], [0, 0]])
def test_nothing_to_run(sizes):
    structure = join_instances((TypeKey("a", "", 0),), [[] for _ in sizes])
    result = search(structure, 2, limit=1)
    assert (result.outcome, result.is_complete) == (FOUND, True)
    assert result.actions.tolist() == []
    # No schedule has fewer than 0 batches.
    result = search(structure, 2, limit=0)
    assert (result.outcome, result.is_complete) == (EXHAUSTED, True)


def test_instances_of_very_different_sizes():
    keys = (TypeKey("a", "", 0), TypeKey("b", "", 0))
    long = [(v % 2, [v - 1] if v else []) for v in range(300)]
    structure = join_instances(keys, [[], long, [(1, [])], long[:7]])
    result = search(structure, 4)
    check_schedule(schedule_of(structure, result.actions), structure)
    assert len(result.actions) == 300
    assert result.is_complete


def test_a_deep_chain():
    structure = long_chain(100_000)
    began = time.thread_time()
    result = search(structure, 2)
    assert time.thread_time() - began < 10
    assert (result.outcome, len(result.actions)) == (FOUND, 100_000)
    assert result.is_complete
    arrays = [each.nbytes for each in result.states]
    assert sum(arrays) < 200e6


def test_a_very_wide_minibatch():
    n = 50_000
    structure = build([0, *[1] * n, 2], [[], *[[0]] * n, [*range(1, n + 1)]], 3)
    result = search(structure, 16)
    assert result.actions.tolist() == [0, 1, 2]


def test_it_stops_when_time_is_over():
    rng = np.random.default_rng(0)
    structure = sample_lattice_structure(rng, instances=32, max_characters=100)
    search(structure, 2)  # compiles
    for max_ms in (0.0, 30.0):
        began = time.thread_time()
        result = search(structure, 500, max_ms=max_ms)
        assert time.thread_time() - began < max_ms / 1e3 + 0.3
        assert result.outcome == STOPPED
        assert result.actions.tolist() == []


def test_it_stops_in_time_where_states_are_costly():
    # Computing a state of an instance of 30,000 nodes visits all of them.
    n = 30_000
    operands = [[v - 1 - v * v % 11] if v >= 11 else [] for v in range(n)]
    structure = build([v * v % 7 % 3 for v in range(n)], operands, 3)
    search(structure, 2, max_ms=0.0)
    began = time.thread_time()
    result = search(structure, 100, max_ms=50.0)  # without the limit: some 1,000 ms
    assert time.thread_time() - began < 1
    assert result.outcome == STOPPED
