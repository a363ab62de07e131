"""Tests that recorded nodes wait until they are needed or too many wait."""

import itertools
from functools import cache, partial

import jax
import numpy as np
import pytest
from asking_models import (
    embed,
    grow_tree,
    make_params,
    noisy,
    sample_words,
    score,
    shift_reduce,
    total,
    turn,
    wander,
)

import edbatch as eb
from edbatch.graph.context import jitted_cells
from edbatch.instance_results import split_instances
from edbatch.schedule.schedule import Schedule
from edbatch.waves import pending, rollout
from edbatch.waves.asked_values import returned_handles

PARAMS = make_params()
batched_once = cache(eb.batch)  # shared by tests that differ only in waves


@pytest.fixture(autouse=True)
def coarse():
    eb.use_tiers("coarse")
    yield
    eb.use_tiers("fine")


def check(outputs, model, instances):
    found = split_instances(outputs, len(instances))
    for one, instance in zip(found, instances, strict=True):
        with jitted_cells():
            expected = model(PARAMS, instance)
        assert jax.tree.structure(one) == jax.tree.structure(expected)
        for leaf, other in zip(
            jax.tree.leaves(one), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(leaf, other, rtol=2e-5, atol=2e-5)


def hypotheses(params, steps):
    """Tries two branches at each step and keeps one; the other's tail is never read."""
    state = embed(params, steps)[0]
    for _ in range(steps):
        first, second = (turn(params, state, k) for k in (0.5, 1.5))
        tails = [turn(params, turn(params, each, 2.0), 3.0) for each in (first, second)]
        scores = eb.value([score(params, first), score(params, second)])
        state = tails[int(scores[0][0] < scores[1][0])]
    return state


def test_what_nobody_needs_never_runs():
    steps = [1, 3, 5, 2]
    found = eb.batch(hypotheses).rollout(PARAMS, steps)
    check(found.outputs, hypotheses, steps)
    report = found.report
    assert report.recorded == 4 + 8 * sum(steps)
    assert report.nodes == 4 + 6 * sum(steps)  # one of the two tails is dropped
    (path,) = eb.batch(hypotheses).rollout(PARAMS, [5]).recordings
    assert path.num_nodes == 1 + 5 * 8  # replays compute all recorded nodes


def late(params, steps):
    """A node that is ready early is read only at the end."""
    state = embed(params, steps)[0]
    first = eb.value(score(params, state))[0]
    early = turn(params, state, float(first))
    for _ in range(steps):
        state = turn(params, state, float(eb.value(score(params, state))[0] > 0))
    return turn(params, state, 1.0), early


def test_what_nobody_asks_for_runs_in_one_wave():
    """Three instances of different lengths: all waiting nodes run at the end."""
    runner, model = eb.batch(late).wave_runner(PARAMS)
    runs = [runner.start(k, partial(model, 6 + k)) for k in range(3)]
    seen = []
    while waiting := [run for run in runs if not run.ended]:
        for run, answers in runner.answers(runner.launch(waiting)):
            runner.resume(run, answers)
        seen.append(len(runner.pending))
    assert seen == [0, 3, 3, 3, 3, 3, 3, 5, 7]  # plus two last turns of each ended one
    before = runner.counts.copy()
    check(rollout.collect_results(runner, runs, 3), late, [6, 7, 8])
    assert runner.counts.nodes == runner.counts.recorded
    assert runner.counts.waves == before.waves + 1
    assert runner.counts.nodes == before.nodes + 9


def lag_behind(params, steps):
    """A chain that nobody asks for: a turn reads a waiting total, and so on."""
    state = tail = embed(params, steps)[0]
    for k in range(steps):
        state = turn(params, state, float(eb.value(score(params, state))[0] > 0))
        tail = turn(params, tail, 0.7) if k % 2 else total([tail, tail])
    return state, tail


@pytest.mark.parametrize("count", [1, 3, 5, 6, 7])
def test_nodes_that_read_waiting_ones_are_not_ready(count):
    steps = [5 + k % 3 for k in range(count)]
    check(batched_once(lag_behind).rollout(PARAMS, steps).outputs, lag_behind, steps)


def test_a_schedule_without_what_it_reads_is_refused():
    runner, model = eb.batch(late).wave_runner(PARAMS)
    run = runner.start(0, lambda: model(3))
    runner.take()
    runner.pending.merge(runner.value_rows)
    (score_type,) = runner.pending.nodes.node_type[-1:]
    order, start = np.array([1], np.int32), np.array([0, 1], np.int32)
    schedule = Schedule(order, start, np.array([score_type], np.int32))
    with pytest.raises(eb.PolicyError, match="before its operands"):
        runner.launch([run], schedule=schedule)


@pytest.mark.parametrize("most", [0, 3, 1000])
@pytest.mark.parametrize("model", [wander, grow_tree, hypotheses, late, lag_behind])
def test_a_bound_of_what_waits_changes_no_result(model, most, monkeypatch):
    monkeypatch.setattr(pending, "_MOST_WAITING", most)
    instances = list(range(9))
    found = batched_once(model).rollout(PARAMS, instances)
    check(found.outputs, model, instances)
    if most == 0:
        assert found.report.nodes == found.report.recorded


@pytest.mark.parametrize("count", [2, 5, 20])
@pytest.mark.parametrize("model", [shift_reduce, wander])
def test_two_parts_give_what_one_gives(model, count, monkeypatch):
    instances = sample_words(count) if model is shift_reduce else list(range(count))
    batched = batched_once(model)
    whole = batched.rollout(PARAMS, instances)
    monkeypatch.setattr(rollout, "_TWO_PARTS", 2)
    parts = batched.rollout(PARAMS, instances)
    check(parts.outputs, model, instances)
    for one, other in zip(whole.recordings, parts.recordings, strict=True):
        np.testing.assert_array_equal(one.node_type, other.node_type)
        np.testing.assert_array_equal(one.operands, other.operands)
    plan = batched.plan(parts.recordings)
    check(batched.apply(PARAMS, plan), model, instances)


@pytest.mark.parametrize(("most", "apart"), [(0, 20), (5, 4), (7, 2), (100, 1)])
def test_two_parts_become_one_when_few_are_left(most, apart, monkeypatch):
    """Six of eight instances are left after one wave, and four after three."""
    monkeypatch.setattr(rollout, "_TWO_PARTS", 2)
    monkeypatch.setattr(rollout, "_ONE_PART", most)
    steps = [1, 3, 20, 20, 1, 3, 20, 20]

    def walk(params, count):
        state = embed(params, count % 12)[0]
        for _ in range(count):
            eb.value(score(params, state))
            state = turn(params, state, 1.0)
        return state

    found = batched_once(walk).rollout(PARAMS, steps)
    check(found.outputs, walk, steps)
    results = 1
    assert found.report.waves == 2 * apart + (20 - apart) + results


def test_keys_do_not_depend_on_parts(monkeypatch):
    def walk(params, steps):
        state = embed(params, steps)[0]
        for _ in range(steps):
            state = noisy(turn(params, state, 1.0))
            eb.value(score(params, state))
        return state

    rng = jax.random.key(7)
    whole = eb.batch(walk)(PARAMS, [3, 1, 2, 4], rng=rng)
    monkeypatch.setattr(rollout, "_TWO_PARTS", 2)
    np.testing.assert_allclose(
        eb.batch(walk)(PARAMS, [3, 1, 2, 4], rng=rng), whole, rtol=1e-6
    )


class RandomWaves:
    """Runs instances with waves of randomly drawn batches."""

    def __init__(self, model, seed):
        self.rng = np.random.default_rng(seed)
        self.runner, self.model = batched_once(model).wave_runner(PARAMS)

    def random_schedule(self):
        pending, rng = self.runner.pending, self.rng
        nodes, reads = pending.nodes, pending.operand_node
        left, order, sizes, types = set(range(len(pending))), [], [], []
        while left and (not order or rng.random() < 0.7):
            start = nodes.operand_start.tolist()
            ready = [
                v
                for v in sorted(left)
                if not left & set(reads[start[v] : start[v + 1]].tolist())
            ]
            t = int(rng.choice(nodes.node_type[ready]))
            own = [v for v in ready if nodes.node_type[v] == t]
            own = own[: int(rng.integers(1, len(own) + 1))]
            left -= set(own)
            order += own
            sizes.append(len(own))
            types.append(t)
        start = np.cumsum([0, *sizes], dtype=np.int32)
        return Schedule(np.array(order, np.int32), start, np.array(types, np.int32))

    def run(self, instances):
        runner, waves = self.runner, itertools.count()
        todo, runs, waiting = list(instances), [], []
        while todo or waiting:
            while todo and self.rng.random() < 0.5:
                runs.append(runner.start(len(runs), partial(self.model, todo.pop(0))))
                waiting += [] if runs[-1].ended else runs[-1:]
            runner.take()
            runner.pending.merge(runner.value_rows)
            if not len(runner.pending):
                continue
            asked = runner.launch(waiting, schedule=self.random_schedule())
            for run, answers in runner.answers(asked):
                runner.resume(run, answers)
                if run.ended:
                    waiting.remove(run)
                    kept = [each._value for each in returned_handles(run)]
                    runner.release(run, kept)
            assert next(waves) < 10_000
        return rollout.collect_results(runner, runs, len(runs))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "model", [shift_reduce, wander, grow_tree, hypotheses, late, lag_behind]
)
def test_any_schedule_of_pending_nodes_gives_the_same(model, seed):
    instances = sample_words(7) if model is shift_reduce else list(range(7))
    check(RandomWaves(model, seed).run(instances), model, instances)


def test_pending_nodes_are_dropped_with_their_instance():
    batched = eb.batch(hypotheses)
    runner, model = batched.wave_runner(PARAMS)
    first, second = (runner.start(k, lambda: model(4)) for k in range(2))
    runner.launch([first, second])
    assert len(runner.pending) == 8  # two tails of two nodes each
    runner.close(first)
    runner.release(first)
    runner.launch([second])
    runner.take()
    runner.pending.merge(runner.value_rows)
    assert len(runner.pending) == 4
    assert (runner.pending.nodes.owner == 1).all()
    runner.close(second)
    runner.release(second)
    runner.launch([])
    runner.take()
    runner.pending.merge(runner.value_rows)
    assert len(runner.pending) == 0
    assert runner.execution.values.rows.in_use == 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("model", [shift_reduce, grow_tree, wander])
def test_instances_stand_aside_for_some_waves(model, seed, monkeypatch):
    """Their recorded nodes run later, next to nodes that others record meanwhile."""
    monkeypatch.setattr(pending, "_MOST_WAITING", 30)
    monkeypatch.setattr(pending, "_MOST_PARTS", 3)
    rng = np.random.default_rng(seed)
    inputs = sample_words(12, seed) if model is shift_reduce else range(seed, seed + 12)
    runner, recorded = batched_once(model).wave_runner(PARAMS)
    number, results, active, aside = {}, {}, [], []

    def note(run):
        if run.ended:
            run.asked = returned_handles(run)
        held = rng.random() < 0.4
        if held:
            runner.hold(run)
        (aside if held else active).append(run)

    inputs = list(inputs)
    while len(results) < 12:
        for k in range(len(number), min(12, len(number) + int(rng.integers(4)))):
            run = runner.start(k, partial(recorded, inputs[k]))
            number[id(run)] = k, run
            note(run)
        gone = [run for run in aside if rng.random() < 0.3 or not active]
        if rng.random() < 0.5:
            runner.take()  # nodes of instances that return may be pending already
        runner.release_held(gone)
        aside = [run for run in aside if run not in gone]
        active += gone
        chosen = [run for run in active if rng.random() < 0.7]
        active = [run for run in active if run not in chosen]
        for run, answers in list(runner.answers(runner.launch(chosen))):
            if run.ended:
                leaves, tree = jax.tree.flatten(run.result)
                assert len(leaves) == len(answers) or model is shift_reduce
                found = iter(answers)
                results[number[id(run)][0]] = tree.unflatten(
                    next(found) if type(leaf).__name__ == "Handle" else leaf
                    for leaf in leaves
                )
                runner.release(run)
            else:
                runner.resume(run, answers)
                note(run)
    for k, found in results.items():
        with jitted_cells():
            expected = model(PARAMS, inputs[k])
        for leaf, other in zip(
            jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_allclose(leaf, other, rtol=2e-5, atol=2e-5)
    runner.tidy()
    assert not len(runner.pending) and not runner.pending._aside
