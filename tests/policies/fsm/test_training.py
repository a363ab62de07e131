"""Training of state machines."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from random_graphs import build
from sampled_graphs import LATTICES, TREES, sampled

from edbatch.envs import (
    sample_dag_structure,
    sample_lattice_structure,
)
from edbatch.errors import PolicyError
from edbatch.policies import (
    ENCODINGS,
    Agenda,
    AgendaRemaining,
    BoundWeights,
    Depth,
    Greedy,
    StateMachine,
    load_policy,
    train_policy,
    warm_up,
)
from edbatch.policies.fsm import episode, training, training_run
from edbatch.policies.fsm.settings import evaluations
from edbatch.policies.fsm.tuning import next_generation, start_tuning
from edbatch.schedule import check_schedule, lower_bound
from edbatch.schedule.examples import chain, tree


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("seed", range(3))
def test_trees_reach_the_lower_bound(encoding, seed):
    train, held_out = sampled(TREES, 8, seed), sampled(TREES, 4, 100 + seed)
    train_policy(train[:1], held_out[:1], trials=1)  # compiles
    start = time.thread_time()
    policy = train_policy(train, held_out, encoding=encoding, seed=seed)
    assert time.thread_time() - start < 2
    record = policy.training
    assert record.stopped == "lower bound"
    assert record.held_out_batches == record.held_out_lower_bound
    assert record.trials == record.best_trial < 1000
    for structure in held_out:
        schedule = policy.schedule(structure)
        check_schedule(schedule, structure)
        assert schedule.num_batches == lower_bound(structure)
        assert schedule.unseen_states == 0


def test_lattices_run_in_fewer_batches_than_by_any_heuristic():
    train, held_out = sampled(LATTICES, 16, 0), sampled(LATTICES, 8, 1)
    policy = train_policy(train, held_out, trials=400)
    record = policy.training
    assert record.held_out_lower_bound <= record.held_out_batches
    assert record.held_out_batches < 0.97 * record.held_out_greedy
    assert record.held_out_greedy < record.held_out_agenda_remaining
    assert record.held_out_agenda_remaining < record.held_out_agenda
    assert record.held_out_agenda_remaining < record.held_out_depth
    assert not record.worse_than_greedy
    # The policy generalizes beyond the minibatches that selected it.
    fresh = sampled(LATTICES, 8, 2)
    ours, theirs = (
        sum(each.schedule(structure).num_batches for structure in fresh)
        for each in (policy, Greedy())
    )
    assert ours < theirs


def test_the_record_is_what_a_user_would_measure():
    train, held_out = sampled(LATTICES, 3, 0), sampled(LATTICES, 2, 1)
    policy = train_policy(
        train, held_out, encoding="max", trials=20, seed=5, workload="some lattices"
    )
    record = policy.training
    assert (record.workload, record.encoding, record.seed) == (
        "some lattices",
        "max",
        5,
    )
    assert (record.minibatches, record.batch_size, record.held_out) == (3, 8.0, 2)
    assert (record.trials, record.max_trials) == (20, 20)
    assert record.elapsed_s > 0
    assert dict(record.versions)["numpy"] == np.__version__
    schedules = [policy.schedule(each) for each in held_out]
    assert record.held_out_batches == np.mean([each.num_batches for each in schedules])
    assert record.held_out_unseen == sum(each.unseen_states for each in schedules)
    assert record.held_out_lower_bound == np.mean([lower_bound(g) for g in held_out])
    for name, heuristic in [
        ("depth", Depth()),
        ("agenda", Agenda()),
        ("agenda_remaining", AgendaRemaining()),
    ]:
        mean = np.mean([heuristic.schedule(g).num_batches for g in held_out])
        assert getattr(record, f"held_out_{name}") == mean


def test_a_seed_gives_the_same_policy_bit_for_bit():
    train, held_out = sampled(LATTICES, 4, 0), sampled(LATTICES, 2, 1)
    one, same, other = (
        train_policy(train, held_out, trials=60, seed=seed) for seed in (1, 1, 2)
    )
    assert one.states == same.states
    elapsed_s = one.training.elapsed_s
    assert replace(same.training, elapsed_s=elapsed_s) == one.training
    assert one.states != other.states


def test_a_trained_policy_survives_its_file(tmp_path):
    policy = train_policy(sampled(TREES, 2, 0), sampled(TREES, 1, 1))
    assert load_policy(policy.save(tmp_path / "policy.json")) == policy


def test_never_worse_than_greedy_on_the_held_out_minibatches():
    fell_back = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        sample = partial(sample_dag_structure, types=3, nodes=40, instances=3)
        first = sample(rng)
        graphs = [replace(sample(rng), type_keys=first.type_keys) for _ in range(4)]
        policy = train_policy(graphs[:2], graphs[2:], encoding="sort", trials=60)
        record = policy.training
        assert record.held_out_batches <= record.held_out_greedy
        if record.worse_than_greedy:
            fell_back += 1
            assert policy.states == ()
            assert record.best_trial == 0
            assert record.held_out_batches == record.held_out_greedy
        else:
            assert policy.states != ()
    assert 0 < fell_back < 12


def test_progress_and_interruption():
    train, held_out = sampled(LATTICES, 4, 0), sampled(LATTICES, 2, 1)
    calls = []

    def interrupt(*call):
        calls.append(call)
        if len(calls) == 6:
            raise KeyboardInterrupt

    policy = train_policy(
        train, held_out, encoding="sort", trials=400, progress=interrupt
    )
    record = policy.training
    assert record.stopped == "interrupted"
    assert [trial for trial, *_ in calls] == [1, 2, 4, 8, 10, 20]
    assert {trials for _, trials, _, _ in calls} == {400}
    assert {bound for *_, bound in calls} == {record.held_out_lower_bound}
    assert record.trials == 20
    least = min(batches for _, _, batches, _ in calls)
    assert record.held_out_batches == min(least, record.held_out_greedy)


@pytest.mark.parametrize(
    ("module", "function"),
    [(episode, "run_trial"), (training_run, "next_generation")],
    ids=["run_trial", "next_generation"],
)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_interrupted_before_the_first_trial(encoding, module, function, monkeypatch):
    warm_up(encoding)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, function, interrupt)
    graphs = sampled(LATTICES, 2, 0)
    if function == "next_generation" and encoding != "fall":
        return
    policy = train_policy(graphs, graphs, encoding=encoding)
    assert policy.training.trials == 0
    assert (policy.training.curve == ()) == (function == "run_trial")
    if function == "run_trial":
        assert policy.states == ()
        assert policy.encoding == ("sort" if encoding == "fall" else encoding)
    assert policy.training.stopped == "interrupted"
    assert not policy.training.worse_than_greedy


@pytest.mark.parametrize("encoding", ["fall", "sort"])
def test_interrupted_while_it_is_made_ready(encoding, monkeypatch):
    graphs = sampled(LATTICES, 2, 0)
    run_trial = episode.run_trial

    def press_ctrl_c(*arguments):
        signal.raise_signal(signal.SIGINT)
        return run_trial(*arguments)

    warm_up.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(episode, "run_trial", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            train_policy(graphs, graphs, encoding=encoding, trials=3)
    policy = train_policy(graphs, graphs, encoding=encoding, trials=3)
    assert policy.training.trials == 3


def test_evaluations_are_frequent_at_first_and_end_with_the_last_trial():
    assert sorted(set(evaluations(1))) == [1]
    assert sorted(set(evaluations(3))) == [1, 2, 3]
    assert sorted(set(evaluations(90)))[:5] == [1, 2, 3, 6, 9]
    assert sorted(set(evaluations(1000)))[:7] == [1, 2, 4, 8, 16, 25, 50]
    assert max(evaluations(999)) == 999


def test_every_minibatch_takes_its_turn():
    # In graph t all nodes have type t, so each graph adds one state to the table.
    graphs = [build([t] * 2, [[], [0]], 4) for t in range(4)]
    policy = train_policy(graphs, graphs, encoding="base", trials=10)
    visits = {state.frontier: state.visits for state in policy.states}
    assert visits == {(t,): 2 for t in range(4)}
    assert policy.training.trials == 4


# ---- the encoding by marginal gains ----


def test_a_curve_has_every_evaluation():
    train, held_out = sampled(LATTICES, 2, 0), sampled(LATTICES, 2, 1)
    calls = []
    policy = train_policy(
        train,
        held_out,
        trials=30,
        generations=2,
        progress=lambda *call: calls.append((call[0], call[2])),
    )
    record = policy.training
    assert record.curve == tuple(calls)
    assert record.curve[0][0] == 0
    assert [trial for trial, _ in calls] == sorted(trial for trial, _ in calls)
    assert record.held_out_batches == min(batches for _, batches in calls)
    assert record.best_trial in [trial for trial, _ in calls]


def test_where_equal_weights_meet_the_bound_none_are_tuned(monkeypatch):
    monkeypatch.setattr(training_run, "next_generation", None)
    train, held_out = sampled(TREES, 2, 0), sampled(TREES, 2, 1)
    policy = train_policy(train, held_out)
    assert policy.weights == BoundWeights()
    assert policy.training.stopped == "lower bound"
    batches = policy.training.held_out_batches
    assert policy.training.curve[0] == (0, batches)
    assert batches == policy.training.held_out_lower_bound


def test_tuned_weights_and_no_table_are_evaluated_too():
    train, held_out = sampled(LATTICES, 4, 0), sampled(LATTICES, 4, 1)
    policy = train_policy(train, held_out, trials=1, generations=4, epsilon=1.0)
    tuned = StateMachine(
        policy.types, "fall", weights=_tuned_weights(train, len(policy.types), 4)
    )
    batches = np.mean([tuned.schedule(each).num_batches for each in held_out])
    assert policy.training.held_out_batches <= batches
    assert (0, batches) in policy.training.curve


def _tuned_weights(graphs, num_types, generations):
    tuning = start_tuning(graphs, num_types)
    for _ in range(generations):
        tuning = next_generation(tuning, graphs, generations, 0)
    return tuning.weights


def test_a_poor_table_is_not_returned(monkeypatch):
    train, held_out = sampled(LATTICES, 2, 0), sampled(LATTICES, 2, 1)

    class BetterThanAny:
        def schedule(self, structure):
            return SimpleNamespace(batch_type=np.zeros(1, np.int32))

    monkeypatch.setattr(training_run, "Greedy", BetterThanAny)
    policy = train_policy(train, held_out, trials=2, generations=0)
    record = policy.training
    assert record.worse_than_greedy
    assert (policy.encoding, policy.states, record.encoding) == ("sort", (), "fall")
    assert (policy.weights, record.best_trial) == (BoundWeights(), 0)
    batches = []
    for structure in held_out:
        ours, greedy = policy.schedule(structure), Greedy().schedule(structure)
        assert ours.num_batches == greedy.num_batches
        batches.append(ours.num_batches)
    assert record.held_out_batches == np.mean(batches)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("patience", [1, 3])
def test_patience(encoding, patience):
    train, held_out = sampled(LATTICES, 3, 0), sampled(LATTICES, 2, 1)
    policy = train_policy(
        train,
        held_out,
        encoding=encoding,
        trials=400,
        generations=1,
        patience=patience,
    )
    record = policy.training
    assert (record.stopped, record.patience) == ("patience", patience)
    least = min(batches for _, batches in record.curve)
    last = [batches for trial, batches in record.curve][-patience:]
    assert min(last) >= least
    if not record.worse_than_greedy:
        assert sum(trial > record.best_trial for trial, _ in record.curve) == patience
    assert record.trials == record.curve[-1][0] < 400


@pytest.mark.parametrize("seed", [-1, 2**64, 2**70 + 3])
def test_any_integer_is_a_seed(seed):
    train, held_out = sampled(LATTICES, 1, 0), sampled(LATTICES, 1, 1)
    policy = train_policy(train, held_out, trials=2, generations=1, seed=seed)
    assert policy.training.seed == seed
    same = train_policy(train, held_out, trials=2, generations=1, seed=seed % 2**64)
    assert (same.states, same.weights) == (policy.states, policy.weights)


# ---- where greedy reaches the bound ----


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_nothing_is_trained_where_greedy_meets_the_bound(encoding, monkeypatch):
    monkeypatch.setattr(episode, "run_trial", None)
    monkeypatch.setattr(training_run, "next_generation", None)
    monkeypatch.setattr(training, "warm_up", None)
    train, held_out = sampled(TREES, 4, 0), sampled(TREES, 2, 1)
    policy = train_policy(train, held_out, encoding=encoding, if_needed=True)
    record = policy.training
    assert (record.stopped, record.trials, record.best_trial) == ("greedy", 0, 0)
    assert not record.worse_than_greedy
    assert record.curve == ((0, record.held_out_greedy),)
    assert record.held_out_batches == record.held_out_lower_bound
    assert (policy.states, record.held_out_unseen) == ((), 0)
    assert policy.encoding == ("sort" if encoding == "fall" else encoding)
    for each in held_out:
        schedule = policy.schedule(each)
        expected = Greedy().schedule(each)
        assert schedule.batch_type.tolist() == expected.batch_type.tolist()
        assert schedule.unseen_states == 0  # without a table no state is unseen


@pytest.mark.parametrize("trees_in", ["graphs", "held_out"])
def test_one_minibatch_on_which_greedy_misses_the_bound_is_enough(trees_in):
    free = [chain("ab")] * 2
    hard = replace(tree("(((a)b)c((a)c)b)"), type_keys=tree("abc").type_keys)
    free = [replace(each, type_keys=hard.type_keys) for each in free]
    minibatches = {"graphs": free, "held_out": free} | {trees_in: [*free, hard]}
    assert Greedy().schedule(hard).num_batches > lower_bound(hard)
    record = train_policy(**minibatches, if_needed=True, trials=3).training
    assert record.stopped != "greedy"


# ---- the clock ----


def test_compilation_is_not_on_the_clock(monkeypatch):
    now = [0.0]

    def warm_up(encoding):
        now[0] += 1000.0
        assert encoding == "max"

    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(training_run, "time", clock)
    monkeypatch.setattr(training, "warm_up", warm_up)
    graphs = sampled(LATTICES, 2, 0)
    policy = train_policy(graphs, graphs, trials=1, encoding="max")
    assert now == [1000.0]
    assert policy.training.elapsed_s == 0


WARM = """
import gc, jax, numpy as np
import edbatch as eb
from edbatch.models import get_workload
from edbatch.policies import train_policy, warm_up
from numba.core.registry import CPUDispatcher

def compiled():
    found = (each for each in gc.get_objects() if isinstance(each, CPUDispatcher))
    return {{(str(each), sig) for each in found for sig in each.signatures}}

workload = get_workload("lattice-lstm", vocabulary_size=30)
params = jax.eval_shape(lambda key: workload.init_params(key, 2), jax.random.key(0))
batched = eb.batch(workload.model, params=params)
found = workload.sample(np.random.default_rng(0), 4)
graphs = [batched.graph(found[k : k + 2]).structure for k in (0, 2)]
warm_up("{encoding}")
before = compiled()
assert before
train_policy(graphs, graphs, trials=20, generations=2, encoding="{encoding}")
assert compiled() == before, compiled() - before
"""


@pytest.mark.parametrize("encoding", ["fall", "sort"])
def test_warming_up_compiles_all_that_training_runs(encoding):
    command = [sys.executable, "-P", "-c", WARM.format(encoding=encoding)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_ctrl_c_at_any_moment_keeps_a_policy():
    rng = np.random.default_rng(0)
    graphs = [sample_lattice_structure(rng) for _ in range(2)]
    train_policy(graphs, graphs, trials=3)  # compiles
    before = signal.signal(
        signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT)
    )
    try:
        for k in range(8):
            signal.setitimer(signal.ITIMER_REAL, 0.02 + 0.007 * k)
            machine = train_policy(graphs, graphs, trials=10**6)
            assert machine.training.stopped == "interrupted"
            check_schedule(machine.schedule(graphs[0]), graphs[0])
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workload": 3}, "'workload' is a text"),
        ({"workload": None}, "'workload' is a text"),
        ({"workload": "\ud800"}, "'workload' is a text"),
        ({"checkpoint": 3}, "'checkpoint' is the path of a file"),
        ({"progress": 3}, "'progress' is a function"),
    ],
)
def test_options_that_would_fail_after_the_training(options, message):
    graph = tree("((ab)cb)c")
    with pytest.raises(PolicyError, match=message):
        train_policy([graph], [graph], **options)
