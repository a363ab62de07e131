import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import long_chain
from schedule_oracles import Naive
from smoothed_bound_oracle import smoothed_bound_of

from edbatch.envs.samplers import sample_dag_structure
from edbatch.policies.smooth_bound.bound import (
    advance,
    marginal_gain,
    path_value,
    powers,
    root,
    smoothed_value,
    start_smoothed_bound,
)
from edbatch.schedule import lower_bound, start_frontier


def start(structure, weight, log2_p):
    state = start_frontier(structure)
    return state, start_smoothed_bound(state, structure.instance_nodes, weight, log2_p)


@given(st.integers(0, 10**6), st.integers(0, 4), st.randoms(use_true_random=False))
def test_value_and_falls_are_those_of_the_definition_at_every_step(
    seed, log2_p, random
):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=int(rng.integers(1, 15)))
    weight = rng.uniform(0.2, 3, structure.num_types + 1)
    graph = Naive(structure)
    state, smooth = start(structure, weight, log2_p)
    done: set[int] = set()
    while len(done) < graph.n:
        value = smoothed_bound_of(structure, done, weight, log2_p)
        assert smoothed_value(smooth) == pytest.approx(value, rel=1e-9)
        ready = graph.frontier(done)
        for t, batch in ready.items():
            after = smoothed_bound_of(structure, done | batch, weight, log2_p)
            assert marginal_gain(smooth, t, path_value(smooth)) == pytest.approx(
                value - after, rel=1e-6, abs=1e-9
            )
        chosen = random.choice(sorted(ready))
        done |= ready[chosen]
        advance(smooth, state, chosen)
    assert smoothed_value(smooth) == 0


def test_the_end_of_a_long_run_is_as_exact_as_its_start():
    structure = long_chain(2_000)
    weight = np.array([1.0, 1.0, 0.0])
    state, smooth = start(structure, weight, 3)
    for step in range(1_999):
        assert marginal_gain(smooth, step % 2, path_value(smooth)) == pytest.approx(1)
        advance(smooth, state, step % 2)
    assert smoothed_value(smooth) == pytest.approx(1)


def test_one_instance_has_its_lower_bound():
    structure = long_chain(50, types=3)
    _, smooth = start(structure, np.array([1.0, 1.0, 1.0, 0.0]), 3)
    assert smoothed_value(smooth) == pytest.approx(lower_bound(structure))


@pytest.mark.parametrize("log2_p", range(5))
def test_roots_undo_powers(log2_p):
    assert root(powers(7, log2_p)[7], log2_p) == pytest.approx(7)
    assert root(-1e-20, log2_p) == 0
