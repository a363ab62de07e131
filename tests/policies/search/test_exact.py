import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import all_graphs, build, graphs, long_chain
from schedule_oracles import Naive, fewest_batches

from edbatch.envs import sample_dag_structure, sample_lattice_structure
from edbatch.errors import PolicyError
from edbatch.policies import Depth, Greedy, find_optimum
from edbatch.policies.search.exact import _parts
from edbatch.schedule import check_schedule, lower_bound
from edbatch.schedule.examples import tree


def check(optimum, structure):
    """Checks the claims of an `Optimum` against the optimal number of batches."""
    fewest = fewest_batches(Naive(structure))(frozenset())
    check_schedule(optimum.schedule, structure)
    assert lower_bound(structure) <= optimum.bound <= fewest
    assert optimum.schedule.num_batches >= fewest
    assert 0 <= optimum.part <= len(structure.instance_nodes)
    if optimum.is_proven:
        assert optimum.schedule.num_batches == fewest


def test_all_small_graphs():
    for structure in all_graphs(4):
        optimum = find_optimum(structure, Depth())
        check(optimum, structure)
        assert optimum.is_proven


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 1000]))
def test_claims_are_true_of_random_minibatches(seed, width):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=6, types=3, missing=0.4)
    optimum = find_optimum(structure, Depth(), width=width)
    check(optimum, structure)
    assert optimum.is_proven or width < 1000


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_claims_are_true_where_the_whole_is_too_large(seed, narrow):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=6, types=4, missing=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edbatch.policies.search.exact._NARROW", narrow)
        check(find_optimum(structure, Greedy(), width=8 * narrow), structure)


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1e-3, 1.0]))
def test_claims_are_true_however_little_time_there_is(seed, max_ms):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=6, types=4, missing=0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edbatch.policies.search.exact._NARROW", 1)
        check(find_optimum(structure, Greedy(), max_ms=max_ms), structure)


@given(graphs(max_nodes=11))
def test_claims_are_true_of_graphs_with_repeated_operands(structure):
    optimum = find_optimum(structure, Depth())
    check(optimum, structure)
    assert optimum.is_proven


def test_parts_begin_with_the_instances_that_raise_the_bound_most():
    # Longest chains of two types in four instances.
    chains = np.array([[1, 1], [3, 1], [1, 2], [3, 0]], np.int32)
    parts = [each.tolist() for each in _parts(chains)]
    # First the longest, then the only one that raises the bound, then the others by
    # decreasing length.
    assert parts == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 0]]


def test_a_part_may_prove_the_optimum_of_the_whole():
    structure = sample_lattice_structure(np.random.default_rng(0), instances=6)
    optimum = find_optimum(structure, Greedy(), width=500)
    check_schedule(optimum.schedule, structure)
    assert lower_bound(structure) <= optimum.bound <= optimum.schedule.num_batches
    assert optimum.schedule.num_batches <= Greedy().schedule(structure).num_batches


@pytest.mark.parametrize("structure", [build([], [], 2), build([0], [[]], 1)])
def test_no_node_and_one_node(structure):
    optimum = find_optimum(structure, Depth())
    assert optimum.is_proven
    assert optimum.bound == structure.num_nodes


def test_time_is_limited():
    structure = sample_lattice_structure(
        np.random.default_rng(1), instances=16, max_characters=80
    )
    find_optimum(structure, Greedy(), width=10, max_ms=1)  # compiles
    began = time.thread_time()
    optimum = find_optimum(structure, Greedy(), width=20_000, max_ms=50.0)
    assert time.thread_time() - began < 5
    assert optimum.bound >= lower_bound(structure)


def test_a_deep_chain():
    assert find_optimum(long_chain(10_000), Depth()).is_proven


class Liar:
    """Returns one batch of all nodes."""

    name = "liar"

    def schedule(self, structure):
        found = Depth().schedule(structure)
        return replace(
            found,
            batch_start=np.int32([0, structure.num_nodes]),
            batch_type=found.batch_type[:1],
        )


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (Liar(), {}, "policy 'liar' returned"),
        ("greedy", {}, "greedy"),
        (Greedy(), {"width": 0}, "the width of find_optimum"),
        (Greedy(), {"width": 1.5}, "the width of find_optimum"),
        (Greedy(), {"max_ms": "x"}, "max_ms of find_optimum"),
    ],
)
def test_what_cannot_be_searched_with(policy, options, message):
    with pytest.raises(PolicyError, match=message):
        find_optimum(tree("(((aa)ba)b(aa)b)b"), policy, **options)
    with pytest.raises(PolicyError, match="the graph of find_optimum"):
        find_optimum(3, Greedy())
