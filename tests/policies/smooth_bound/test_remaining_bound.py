import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import build, graphs, long_chain
from schedule_oracles import Naive

from edbatch.policies.smooth_bound.remaining import (
    chains_below,
    new_bound,
    update_bound,
)
from edbatch.schedule import longest_chains, lower_bound, run_type, start_frontier


def start(structure):
    begin, consumers, _ = structure.consumers
    below = chains_below(structure.node_type, begin, consumers, structure.num_types)
    state = start_frontier(structure)
    return state, new_bound(state, below)


def remaining(structure, done):
    """The graph of the nodes that have not run yet."""
    graph = Naive(structure)
    left = [v for v in range(graph.n) if v not in done]
    number = {v: k for k, v in enumerate(left)}
    operands = [[number[u] for u in graph.reads[v] - done] for v in left]
    return build([graph.types[v] for v in left], operands, graph.num_types)


@given(graphs(max_nodes=30), st.randoms(use_true_random=False))
def test_the_bound_is_that_of_what_remains_at_every_step(structure, random):
    graph = Naive(structure)
    state, bound = start(structure)
    done: set[int] = set()
    fallen = 0
    while len(done) < graph.n:
        expected = longest_chains(remaining(structure, done))
        np.testing.assert_array_equal(bound.longest, expected)
        chosen = random.choice(sorted(graph.frontier(done)))
        done |= graph.frontier(done)[chosen]
        fall = update_bound(bound, state, chosen, *run_type(state, chosen))
        assert fall in (0, 1)
        fallen += fall
    assert not bound.longest.any()
    assert fallen == lower_bound(structure)


def test_a_deep_chain():
    state, bound = start(long_chain(100_000))
    assert bound.longest.tolist() == [50_000, 50_000]
    assert update_bound(bound, state, 0, *run_type(state, 0)) == 1
    assert bound.longest.tolist() == [49_999, 50_000]
