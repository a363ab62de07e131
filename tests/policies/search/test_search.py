import math
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import all_graphs, build, long_chain
from schedule_oracles import Naive, fewest_batches

from edbatch.envs import (
    sample_dag_structure,
    sample_lattice_structure,
    sample_tree_structure,
)
from edbatch.errors import PolicyError
from edbatch.policies import (
    Agenda,
    BeamSearch,
    BoundWeights,
    Depth,
    Greedy,
    StateMachine,
)
from edbatch.policies.search.beam import STOPPED
from edbatch.policies.search.beam_search import NUM_VARIATIONS, Search, schedule_of
from edbatch.schedule import check_schedule, lower_bound
from edbatch.schedule.examples import chain

POLICIES = [Depth(), Agenda(), Greedy()]


def lattices(seed, count, instances=6):
    rng = np.random.default_rng(seed)
    return [sample_lattice_structure(rng, instances=instances) for _ in range(count)]


def check(searched, structure):
    """Checks the schedule of a search against the schedule of its policy."""
    alone = searched.policy.schedule(structure)
    schedule = searched.schedule(structure)
    check_schedule(schedule, structure)
    assert lower_bound(structure) <= schedule.num_batches <= alone.num_batches
    found = schedule.num_batches < alone.num_batches
    assert schedule.policy == ("search" if found else alone.policy)
    if not found:
        np.testing.assert_array_equal(schedule.order, alone.order)
        assert schedule.unseen_states == alone.unseen_states
    return schedule


@given(st.integers(0, 10**6), st.sampled_from(POLICIES), st.integers(1, 5))
def test_never_more_batches_than_the_policy(seed, policy, width):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=12, types=3)
    check(BeamSearch(policy, width=width), structure)


def test_enough_width_finds_the_optimum_of_all_small_graphs():
    for structure in all_graphs(3):
        schedule = check(BeamSearch(Depth(), width=64), structure)
        assert schedule.num_batches == fewest_batches(Naive(structure))(frozenset())


@given(st.integers(0, 10**6))
def test_enough_width_finds_the_optimum(seed):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=2, nodes=6, types=3)
    schedule = check(BeamSearch(Depth(), width=2000), structure)
    assert schedule.num_batches == fewest_batches(Naive(structure))(frozenset())


@given(st.integers(0, 10**6), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_proofs_are_right_whatever_was_run_before(seed, widths):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=5, types=3, missing=0.4)
    fewest = fewest_batches(Naive(structure))(frozenset())
    search = Search(structure, None, structure.num_nodes + 1)
    for k, width in enumerate(widths):
        search.run(width, k % NUM_VARIATIONS)
        if search.is_proven:
            assert search.limit == fewest
        if search.actions is not None:
            schedule = schedule_of(structure, search.actions)
            check_schedule(schedule, structure)
            assert schedule.num_batches == search.limit >= fewest
    search.run(1000)
    assert (search.is_proven, search.limit) == (True, fewest)


def test_parts_of_the_instances_bound_the_whole():
    [structure] = lattices(0, 1, instances=3)
    whole = Search(structure, None, structure.num_nodes + 1)
    whole.run(50)
    assert whole.chains.shape == (3, structure.num_types)
    assert whole.chains.max(axis=0).sum() == lower_bound(structure)
    for part in ([0], [1], [2], [0, 1], [2, 0], []):
        search = Search(structure, None, structure.num_nodes + 1, np.array(part, int))
        search.run(50)
        schedule = schedule_of(structure, whole.actions)
        assert schedule.num_batches == whole.limit
        if search.is_proven:
            assert search.limit <= whole.limit


def test_a_schedule_that_meets_the_bound_is_not_searched(monkeypatch):
    monkeypatch.setattr("edbatch.policies.search.beam_search.Search", None)
    structure = sample_tree_structure(np.random.default_rng(0))
    machine = StateMachine(structure.type_keys, "fall")
    schedule = BeamSearch(machine).schedule(structure)
    assert schedule.policy == "fsm-fall"
    assert schedule.num_batches == lower_bound(structure)
    empty = build([], [], 2)
    assert BeamSearch(Depth()).schedule(empty).num_batches == 0
    deep = long_chain(100_000)
    assert BeamSearch(Depth()).schedule(deep).num_batches == 100_000


def test_a_width_gives_the_same_at_any_time():
    for structure in lattices(1, 3):
        one, same = (BeamSearch(Greedy(), 1e-9, width=8) for _ in range(2))
        batch_type = check(one, structure).batch_type.tolist()
        assert check(same, structure).batch_type.tolist() == batch_type
        assert len(batch_type) < Greedy().schedule(structure).num_batches


def test_the_policys_weights_are_searched_with():
    [structure] = lattices(2, 1)
    num_types = structure.num_types
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(4):
        weights = BoundWeights(rng.uniform(0.01, 9, num_types), rng.uniform(0.01, 9))
        policy = StateMachine(structure.type_keys, "fall", weights=weights)
        search = Search(structure, policy, structure.num_nodes + 1)
        search.run(1)
        found.add(tuple(search.actions.tolist()))
    assert len(found) > 1


def test_variations_differ():
    [structure] = lattices(3, 1)
    found = set()
    for variation in range(NUM_VARIATIONS):
        search = Search(structure, None, structure.num_nodes + 1)
        search.run(2, variation)
        found.add(tuple(search.actions.tolist()))
    assert len(found) > 1


def test_a_budget_is_kept():
    structures = lattices(4, 4, instances=32)
    BeamSearch(Depth(), 1.0).schedule(structures[0])  # compiles
    for budget_ms in (1.0, 20.0, 100.0):
        times = []
        for structure in structures:
            began = time.perf_counter()
            check(BeamSearch(Depth(), budget_ms), structure)
            times.append((time.perf_counter() - began) * 1e3)
        assert min(times) < 2 * budget_ms + 40


def test_any_budget_ends_where_the_optimum_is_proven():
    structure = sample_dag_structure(np.random.default_rng(5), instances=2, nodes=8)
    schedule = check(BeamSearch(Depth(), math.inf), structure)
    search = Search(structure, None, structure.num_nodes + 1)
    search.run(4000)
    assert (search.limit, search.is_proven) == (schedule.num_batches, True)


def test_a_search_that_had_no_time_claims_nothing():
    [structure] = lattices(5, 1, instances=32)
    search = Search(structure, None, structure.num_nodes + 1)
    result = search.run(1000, max_ms=0.0)
    assert (result.outcome, search.actions, search.is_proven) == (STOPPED, None, False)
    assert search.limit == structure.num_nodes + 1


# ---- the BeamSearch object ----


def test_its_name_is_that_of_the_policy_and_more():
    assert BeamSearch(Greedy()).name == "greedy+search"
    machine = StateMachine(chain("ab").type_keys, "fall")
    assert BeamSearch(machine).name == "fsm-fall+search"


def test_copies_and_threads_search_alike():
    structures = lattices(6, 4)
    machine = StateMachine(structures[0].type_keys, "fall")
    searched = BeamSearch(machine, width=4)
    copy = pickle.loads(pickle.dumps(searched))
    assert copy == searched
    expected = [copy.schedule(each).order.tolist() for each in structures]
    with ThreadPoolExecutor(2) as pool:
        found = [
            each.order.tolist() for each in pool.map(searched.schedule, structures * 2)
        ]
    assert found == expected * 2


def test_errors_of_the_policy_are_its_own():
    machine = StateMachine(chain("ab").type_keys, "fall")
    with pytest.raises(PolicyError, match="was not trained on 'c'"):
        BeamSearch(machine).schedule(chain("abc"))


@pytest.mark.parametrize("budget_ms", [0, -1.0, math.nan])
def test_budgets_out_of_range(budget_ms):
    with pytest.raises(PolicyError, match=f"above 0 but this is {budget_ms!r}; use"):
        BeamSearch(Greedy(), budget_ms)


@pytest.mark.parametrize("width", [0, -3, 2.5, 4.0, math.nan])
def test_widths_out_of_range(width):
    with pytest.raises(PolicyError, match=f"1 or more, but its width is {width!r}; le"):
        BeamSearch(Greedy(), width=width)
