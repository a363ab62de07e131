"""The policies that ship with edbatch, one for each ready-made workload."""

import jax
import numpy as np
import pytest

import edbatch as eb
from edbatch.models import WORKLOADS, get_workload
from edbatch.policies import StateMachine, get_policy, zoo_names
from edbatch.policies.registry import HEURISTICS
from edbatch.schedule import check_schedule

# Only one width: compilation, not the number of rows, dominates the time here.
SIZES = eb.Sizes(widths=(16,))
QUICK = ("tree-lstm", "lattice-gru")
TRAINED = [name for name in WORKLOADS if get_workload(name).zoo_data]


def load(name):
    policy = get_policy(f"zoo:{name}")
    assert isinstance(policy, StateMachine)
    return policy


def sample(name, count):
    """Instances of a workload, its parameters, and its model with the zoo policy."""
    workload = get_workload(name, vocabulary_size=30)
    instances = workload.sample(np.random.default_rng(0), count)
    params = workload.init_params(jax.random.key(0), 4)
    batched = eb.batch(workload.model, f"zoo:{name}", params=params, sizes=SIZES)
    return instances, params, batched


def test_there_is_one_for_each_workload_that_names_its_data():
    assert sorted(zoo_names()) == sorted(TRAINED)
    assert len(TRAINED) >= 12


@pytest.mark.parametrize("name", TRAINED)
def test_its_training_is_on_record(name):
    record = load(name).training
    assert record is not None
    assert record.workload.startswith(f"{name} on ")
    assert "/" not in record.workload  # names of files, without paths
    assert record.stopped != "interrupted"
    assert record.held_out_lower_bound <= record.held_out_batches
    assert record.held_out_batches <= record.held_out_greedy
    # There was nothing to learn exactly where greedy reaches the bound.
    suffices = record.held_out_greedy == record.held_out_lower_bound
    assert (record.stopped == "greedy") == suffices == (not load(name).states)


@pytest.mark.parametrize("name", TRAINED)
def test_it_schedules_minibatches_of_its_workload(name):
    policy = load(name)
    instances, _, batched = sample(name, 24)
    known = {(key.cell, key.path) for key in policy.types}
    for k in range(0, 24, 8):
        structure = batched.graph(instances[k : k + 8]).structure
        assert {(key.cell, key.path) for key in structure.type_keys} <= known
        check_schedule(policy.schedule(structure), structure)
        report = batched.plan(instances[k : k + 8]).report
        assert report.policy in (policy.name, *HEURISTICS)
        assert report.nodes == structure.num_nodes


@pytest.mark.parametrize("name", QUICK)
def test_batched_equals_unbatched(name):
    instances, params, batched = sample(name, 3)
    assert eb.verify(batched, params, instances, gradients=False).instances == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(TRAINED) - set(QUICK)))
def test_each_workload_runs(name):
    instances, params, batched = sample(name, 3)
    assert eb.verify(batched, params, instances, gradients=False).instances == 3
