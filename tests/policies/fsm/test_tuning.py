import numpy as np
import pytest

from edbatch.envs import sample_lattice_structure
from edbatch.policies import BoundWeights, StateMachine
from edbatch.policies.fsm.tuning import (
    POPULATION,
    as_weights,
    next_generation,
    start_tuning,
)


@pytest.fixture(scope="module")
def lattices():
    rng = np.random.default_rng(0)
    return [sample_lattice_structure(rng, instances=6) for _ in range(3)]


def batches_of(weights, structures):
    policy = StateMachine(structures[0].type_keys, "fall", weights=weights)
    return np.mean([policy.schedule(each).num_batches for each in structures])


def test_it_starts_from_equal_weights(lattices):
    tuning = start_tuning(lattices, lattices[0].num_types)
    equal = BoundWeights((1.0,) * lattices[0].num_types)
    assert (tuning.generation, tuning.weights) == (0, equal)
    assert tuning.best_batches == batches_of(BoundWeights(), lattices)


def test_it_never_gets_worse_and_says_what_it_found(lattices):
    tuning = start_tuning(lattices, lattices[0].num_types)
    first = tuning.best_batches
    for generation in range(1, 6):
        before = tuning.best_batches
        tuning = next_generation(tuning, lattices, 5, seed=3)
        assert tuning.generation == generation
        assert tuning.best_batches <= before
        assert tuning.best_batches == batches_of(tuning.weights, lattices)
        assert (tuning.spread > 0).all() or generation == 5
    assert tuning.best_batches < first


def test_a_generation_depends_on_nothing_but_what_it_is_given(lattices):
    start = start_tuning(lattices, lattices[0].num_types)
    kept = start.mean.copy()
    one, same, other = (next_generation(start, lattices, 4, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.mean, same.mean)
    np.testing.assert_array_equal(one.spread, same.spread)
    assert not np.array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(start.mean, kept)
    again = next_generation(one, lattices, 4, 1)
    assert not np.array_equal(again.mean, one.mean)
    assert POPULATION > 1


def test_weights_are_rounded_as_in_files():
    weights = as_weights(np.log([1.23456, 0.00049, 2.0]))
    assert weights == BoundWeights((1.235, 0.0), 2.0)


def test_types_that_no_graph_has(lattices):
    # A model may have types that these minibatches lack.
    tuning = start_tuning(lattices, lattices[0].num_types + 2)
    assert len(tuning.weights.types) == lattices[0].num_types + 2
    tuning = next_generation(tuning, lattices, 1, 0)
    assert len(tuning.weights.types) == lattices[0].num_types + 2
