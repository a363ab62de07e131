import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import long_chain
from schedule_oracles import Naive
from soft_bound_oracle import soft_bound_of

from edbatch.envs.samplers import sample_dag_structure
from edbatch.policies.smooth_bound.bound import (
    advance,
    fall,
    path_value,
    soft_value,
    start_soft_bound,
)
from edbatch.policies.smooth_bound.powers import powers, root
from edbatch.schedule import lower_bound, start_frontier


def start(structure, weight, squarings):
    state = start_frontier(structure)
    return state, start_soft_bound(state, structure.instance_nodes, weight, squarings)


@given(st.integers(0, 10**6), st.integers(0, 4), st.randoms(use_true_random=False))
def test_value_and_falls_are_those_of_the_definition_at_every_step(
    seed, squarings, random
):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=int(rng.integers(1, 15)))
    weight = rng.uniform(0.2, 3, structure.num_types + 1)
    graph = Naive(structure)
    state, soft = start(structure, weight, squarings)
    done: set[int] = set()
    while len(done) < graph.n:
        value = soft_bound_of(structure, done, weight, squarings)
        assert soft_value(soft) == pytest.approx(value, rel=1e-9)
        ready = graph.frontier(done)
        for t, batch in ready.items():
            after = soft_bound_of(structure, done | batch, weight, squarings)
            assert fall(soft, t, path_value(soft)) == pytest.approx(
                value - after, rel=1e-6, abs=1e-9
            )
        chosen = random.choice(sorted(ready))
        done |= ready[chosen]
        advance(soft, state, chosen)
    assert soft_value(soft) == 0


def test_the_end_of_a_long_run_is_as_exact_as_its_start():
    structure = long_chain(2_000)
    weight = np.array([1.0, 1.0, 0.0])
    state, soft = start(structure, weight, 3)
    for step in range(1_999):
        assert fall(soft, step % 2, path_value(soft)) == pytest.approx(1)
        advance(soft, state, step % 2)
    assert soft_value(soft) == pytest.approx(1)


def test_one_instance_has_its_lower_bound():
    structure = long_chain(50, types=3)
    _, soft = start(structure, np.array([1.0, 1.0, 1.0, 0.0]), 3)
    assert soft_value(soft) == pytest.approx(lower_bound(structure))


@pytest.mark.parametrize("squarings", range(5))
def test_roots_undo_powers(squarings):
    assert root(powers(7, squarings)[7], squarings) == pytest.approx(7)
    assert root(-1e-20, squarings) == 0
