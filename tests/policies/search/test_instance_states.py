import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import all_graphs, build, graphs, long_chain
from schedule_oracles import Naive
from smoothed_bound_oracle import longest, parts_of

from edbatch.envs import sample_dag_structure, sample_lattice_structure
from edbatch.envs.samplers import join_instances
from edbatch.graph import TypeKey
from edbatch.policies.search.instance_graph import instance_graph
from edbatch.policies.search.instance_states import (
    UNKNOWN,
    InstanceStates,
    follow,
    grown,
    new_scratch,
    new_states,
)


class Walk:
    """Follows states, growing the arrays when they are full."""

    def __init__(self, structure):
        self.graph = instance_graph(structure)
        self.states, self.start = new_states(self.graph)
        self.scratch = new_scratch(self.graph)

    def after(self, state, chosen):
        found = UNKNOWN
        while found < 0:
            found = follow(self.graph, self.states, self.scratch, state, chosen)
            if found < 0:
                before = {name: each.copy() for name, each in self.used.items()}
                self.states = InstanceStates(*grown(self.states))
                for name, each in self.used.items():
                    np.testing.assert_array_equal(each, before[name])
        return found

    @property
    def used(self):
        """The parts of the arrays that are in use."""
        size, frontier, bits, _ = self.states.used
        sizes = {"frontier": frontier, "bits": bits, "used": 4}
        return {
            name: each[: sizes.get(name, size)]
            for name, each in self.states._asdict().items()
            if name != "table"
        }

    def frontier(self, state):
        first, size = self.states.place[state, 1:3]
        return self.states.frontier[first : first + size].tolist()


def check_state(walk, state, structure, graph, part, done):
    """Compares a state with the definitions; returns the ready nodes by type."""
    outside = {*range(graph.n)} - part
    ready = graph.frontier(done | outside)
    expected = sorted(v for batch in ready.values() for v in batch)
    assert sorted(walk.frontier(state)) == expected
    states = walk.states
    for t in range(graph.num_types):
        heads = graph.heads(done | outside, t)
        assert states.ready[state, t] == len(ready.get(t, ()))
        assert states.chain[state, t] == longest(graph, part - done, t)
        assert states.allowed[state, t] == (heads == {*ready.get(t, ())})
        if t not in ready:
            assert states.following[state, t] == state
    assert states.chain[state, -1] == longest(graph, part - done, None)
    return ready


def check_all(structure, most=400):
    """Visits the states of all instances, keyed by the set of nodes that have run."""
    graph = Naive(structure)
    walk = Walk(structure)
    found = {}
    for i, part in enumerate(parts_of(structure)):
        todo = [(int(walk.start[i]), frozenset())]
        while todo and len(found) < most:
            state, done = todo.pop()
            if (i, done) in found:
                assert found[i, done] == state
                continue
            assert state not in found.values()
            found[i, done] = state
            ready = check_state(walk, state, structure, graph, part, done)
            for t, batch in ready.items():
                after = walk.after(state, t)
                assert walk.states.following[state, t] == after
                todo.append((after, done | batch))
    return found, walk


@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([0.1, 0.6]))
def test_states_are_sets_of_nodes_that_have_run(seed, types, missing):
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(1, 12))
    structure = sample_dag_structure(
        rng, instances=2, nodes=nodes, types=types, missing=missing
    )
    check_all(structure)


@given(graphs(max_nodes=25))
def test_graphs_with_repeated_and_missing_operands(structure):
    check_all(structure, most=100)


def test_all_small_graphs():
    for structure in all_graphs(4):
        found, walk = check_all(structure)
        assert len(found) == walk.states.used[0]


def test_longer_instances_than_a_word_has_bits():
    rng = np.random.default_rng(0)
    structure = sample_dag_structure(rng, instances=2, nodes=150, types=4)
    assert len(check_all(structure, most=150)[0]) >= 100
    lattices = sample_lattice_structure(rng, instances=2, max_characters=60)
    assert len(check_all(lattices, most=100)[0]) == 100


def join_many(sizes, types=2):
    """Instances with `sizes` nodes, all ready, whose types alternate."""
    keys = tuple(TypeKey(f"t{k}", "", 0) for k in range(types))
    return join_instances(keys, [[(v % types, []) for v in range(n)] for n in sizes])


def test_instances_without_nodes_and_of_one_node():
    structure = join_many([0, 1, 0, 2, 1])
    found, walk = check_all(structure)
    assert len({*walk.start.tolist()}) == 5  # equal sets, other instances
    assert len(found) == 1 + 2 + 1 + 4 + 2


@pytest.mark.parametrize("sizes", [[], [0], [0, 0]])
def test_nothing_to_run(sizes):
    found, walk = check_all(join_many(sizes))
    assert len(walk.start) == len(sizes)
    assert all(walk.states.allowed[state].all() for state in found.values())


@pytest.mark.parametrize("types", [64, 65, 130])
def test_many_types(types):
    # Two nodes of each type; every third node reads the previous one.
    operands = [[v - 1] if v % 3 == 2 else [] for v in range(2 * types)]
    structure = build([v % types for v in range(2 * types)], operands, types)
    found, walk = check_all(structure, most=10)
    assert len(found) == 10
    assert not walk.states.allowed[walk.start[0]].all()


def test_many_states():
    # Any subset of 11 types may have run: 2048 states, each reached in many orders.
    found, walk = check_all(build(range(11), [[]] * 11, 11), most=10_000)
    assert len(found) == walk.states.used[0] == 2**11
    assert len(walk.states.key) >= 2**11


def test_a_node_with_very_many_readers_and_one_that_reads_them_all():
    # Must be linear, not quadratic, in the readers of a batch.
    n = 100_000
    structure = build([0, *[1] * n, 0], [[], *[[0]] * n, [*range(1, n + 1)] * 2], 2)
    walk = Walk(structure)
    state = walk.after(walk.start[0], 0)
    assert walk.states.ready[state].tolist() == [0, n]
    assert walk.states.allowed[state].tolist() == [False, True]
    state = walk.after(state, 1)
    assert walk.frontier(state) == [n + 1]


def test_a_long_instance_takes_little_room_per_state():
    walk = Walk(long_chain(20_000))
    state = walk.start[0]
    for step in range(20_000):
        state = walk.after(state, step % 2)
    assert walk.frontier(state) == []
    assert walk.states.used[2] <= 2 * walk.states.used[0]
    assert walk.states.used[3] <= 4 * walk.states.used[0]
