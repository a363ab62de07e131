"""Tests that rows of values that an instance can no longer reach are reused."""

import gc

import jax
import numpy as np
import pytest
from asking_models import embed, join, make_params, score, turn

import edbatch as eb
from edbatch.graph.handle import Handle
from edbatch.waves import in_flight, long_run, runner
from edbatch.waves.asked_values import returned_handles
from edbatch.waves.long_run import LongRun

pytestmark = pytest.mark.usefixtures("small_arenas")


@pytest.fixture
def early(monkeypatch):
    """Watches handles from the fourth part on."""
    monkeypatch.setattr(in_flight, "LONG", 4)


def wander(params, instance):
    """Keeps, drops and rereads states of many ages, depending on computed values."""
    seed, steps = instance
    rng = np.random.default_rng(seed)
    kept = {"first": embed(params, seed % 12)}
    boxes, asked = [], []
    for k in range(steps):
        state = kept[sorted(kept)[int(rng.integers(len(kept)))]]
        scores = eb.value(score(params, state[0]))
        asked.append(float(scores[0]))
        new = embed(params, (seed + k) % 12) if rng.random() < 0.3 else state
        unasked = turn(params, new[1], 1.5)  # may wait for long, or forever
        joined = join(params["join"], new, state)
        name = f"{int(rng.integers(5))}"
        kept[name] = joined if scores[0] > scores[1] else (joined[0], unasked)
        if rng.random() < 0.2:  # in a cycle, which only the garbage collector frees
            boxes = [joined[0], unasked]
            boxes.append(boxes)
        if boxes and rng.random() < 0.2:
            asked += [float(each.sum()) for each in eb.value(boxes[:2])]
        if rng.random() < 0.2:
            kept.pop(sorted(kept)[0], None)
            kept.setdefault("first", joined)
    return kept[min(kept)][1], np.array(asked[-3:], np.float32)


def same(found, expected):
    leaves = jax.tree.leaves(found)
    for one, other in zip(leaves, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-4)


@pytest.fixture
def freed(monkeypatch):
    """How many values each search freed."""
    counts, free = [], long_run.free_unreachable

    def counted(runs, pending, rows):
        before = rows.in_use
        free(runs, pending, rows)
        counts.append(before - rows.in_use)

    monkeypatch.setattr(runner, "free_unreachable", counted)
    return counts


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize(("seed", "count"), [(0, 1), (1, 7), (2, 7), (3, 33)])
def test_answers_are_those_of_the_model(seed, count, freed):
    params, rng = make_params(seed), np.random.default_rng(seed)
    instances = [
        (int(rng.integers(99)), int(rng.integers(3, 60))) for _ in range(count)
    ]
    instances[0] = (seed, 90)
    batched = eb.batch(wander)
    rollout = batched.rollout(params, instances)
    assert sum(freed) > 30 * count
    again = batched.apply(params, batched.plan(rollout.recordings))
    outputs = batched(params, instances)  # does not keep parts of long instances
    for k, each in enumerate(instances):
        expected = wander(params, each)
        same(jax.tree.map(lambda leaf, k=k: leaf[k], rollout.outputs), expected)
        same(jax.tree.map(lambda leaf, k=k: leaf[k], outputs), expected)
        same(jax.tree.map(lambda leaf, k=k: leaf[k], again)[0], expected[0])


@pytest.mark.usefixtures("early", "freed")
def test_gradients_of_long_paths():
    """Replay needs none of the freed values."""
    params, instances = make_params(), [(5, 40), (6, 20)]
    batched = eb.batch(wander)
    plan = batched.plan(batched.rollout(params, instances).recordings)
    found = jax.grad(lambda p: (batched.apply(p, plan)[0] ** 2).sum())(params)
    one = jax.grad(lambda p: sum((wander(p, each)[0] ** 2).sum() for each in instances))
    same(found, one(params))


def decode(params, instance):
    """Holds one state at a time, and the first one to the end."""
    word, steps = instance
    first = state = embed(params, word)
    for _ in range(steps):
        scores = eb.value(score(params, state[0]))
        state = embed(params, int(abs(scores[0]) * 1e4) % 12)
    return join(params["join"], first, state)


def arena_rows(batched):
    (sizes,) = batched.states.default().waves.values()
    return {k: n for k, n in sizes.bucket.sizes.items() if k.startswith("arena")}


@pytest.mark.parametrize("steps", [4000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_a_long_decoder_needs_few_rows(steps):
    params, batched = make_params(), eb.batch(decode)
    runner, model = batched.wave_runner(params)
    instances = [(k, steps) for k in range(2)]
    runs = [runner.start(k, lambda e=e: model(e)) for k, e in enumerate(instances)]
    most = waves = 0
    while not all(run.ended for run in runs):
        for run, values in runner.answers(runner.launch(runs)):
            runner.resume(run, values)
        waves += 1
        if waves % 1000 == 0:
            most = max(
                most, *(len(each) for each in runner.execution.values.arenas.values())
            )
            assert all(len(run.parts) <= long_run.LONG + 1 for run in runs)
            assert all(len(run.handles) < 4096 for run in runs)
    assert waves == steps
    # Until instances are watched, they keep two values for each part: 512 rows. The
    # number of all values is four times the number of steps.
    assert most <= 2048
    for run in runs:
        run.asked = returned_handles(run)
    for run, values in runner.answers(runner.launch(runs)):
        same(values, decode(params, instances[run.index]))


def test_rows_of_ended_instances_are_free():
    """No watched values remain: few rows suffice for many long instances."""
    params, batched = make_params(), eb.batch(decode)
    batched(params, [(1, 300), (2, 300)])
    before = arena_rows(batched)
    runner, model = batched.wave_runner(params)
    for k in range(12):
        run = runner.start(k, lambda k=k: model((k, 300)))
        while not run.ended:
            for _, values in runner.answers(runner.launch([run])):
                runner.resume(run, values)
        runner.release(run)
        runner.tidy()
        assert not runner.value_rows.in_use
        assert not runner.long
    assert arena_rows(batched) == before


@pytest.mark.usefixtures("early")
def test_what_a_failed_instance_recorded_is_not_freed_for_others():
    """The next instance reuses the numbers of values that are cut off the tape."""

    def model(params, instance):
        word, steps = instance
        state = embed(params, word)
        for k in range(steps):
            eb.value(score(params, state[0]))
            state = embed(params, k % 12)
            if k == 9 and word == 3:
                held = [embed(params, 1) for _ in range(20)]
                raise ValueError(f"{len(held)} words")
        return state

    params, batched = make_params(), eb.batch(model)
    runner, call = batched.wave_runner(params)
    runs = [runner.start(k, lambda k=k: call((3 - k, 30))) for k in range(2)]
    while len(runs) > 1 or not runs[0].ended:
        for run, values in runner.answers(
            runner.launch([r for r in runs if not r.ended])
        ):
            mark = runner.tape.mark()
            try:
                runner.resume(run, values)
            except ValueError:
                runner.cut_back(run, mark)
                runner.release(run)
                runs = [each for each in runs if each is not run]
                assert isinstance(run, LongRun)
                assert (run.unfreed() < mark.num_values).all()
    (run,) = runs
    run.asked = returned_handles(run)
    for _, values in runner.answers(runner.launch([run])):
        same(values, embed(params, 29 % 12))


@pytest.fixture
def suspended():
    """A watched instance that holds the handles in `held`, and its runner."""

    def model(params, held):
        states = [embed(params, k) for k in range(4)]
        eb.value(score(params, states[0][0]))
        held += [embed(params, k)[0] for k in range(4)]
        held.append(turn(params, held[3], 0.5))
        for _ in range(3):
            eb.value([held[0], held[1]])
        return held[0]

    batched, held = eb.batch(model), []
    runner, call = batched.wave_runner(make_params())
    run = runner.start(0, lambda: call(held))
    runner.long.append(long_run.watch(run))
    for _ in range(2):
        for each, values in runner.answers(runner.launch([run])):
            runner.resume(each, values)
    runner.take()
    runner.pending.merge(runner.value_rows)
    return run, held, runner


def used(runner, handles):
    return runner.value_rows.are_used(np.array([h._value for h in handles])).tolist()


def test_which_rows_go(suspended):
    run, held, runner = suspended
    assert isinstance(run, LongRun)
    numbers = [each._value for each in held]
    copies = [Handle() for _ in held]
    for one, other in zip(copies, held, strict=True):
        one._value = other._value
    rows = runner.value_rows
    assert rows.of(numbers[:2]).min() > 0  # asked for
    assert rows.of(numbers[2:]).max() < 0  # wait for company
    runner._free_unreachable()
    assert used(runner, copies) == [True] * 5
    del held[1:]  # the instance still asks for the first two
    gc.collect()
    runner._free_unreachable()
    assert used(runner, copies) == [True] * 5  # two are asked for, three have no rows
    run.asked = run.asked[:1]
    runner._free_unreachable()
    assert used(runner, copies)[:2] == [True, True]  # held by its call stack


def test_values_that_pending_nodes_read_stay(suspended):
    run, held, runner = suspended
    numbers = [each._value for each in held]
    last = held.pop()
    del held[3]
    runner._free_unreachable()
    runner.compute([numbers[2]])
    runner._free_unreachable()
    read = runner.pending.find_read(runner.value_rows)
    assert read[numbers[3] - runner.value_rows.first]
    runner.compute([last._value])
    read = runner.pending.find_read(runner.value_rows)
    assert not read[numbers[3] - runner.value_rows.first]
    runner._free_unreachable()
    assert runner.value_rows.are_used(np.array(numbers)).tolist() == [
        *[True] * 3,
        False,
        True,
    ]
    assert runner.rows_of([numbers[3]])[0] == -1
    assert numbers[3] not in run.unfreed()
