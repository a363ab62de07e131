"""Tests that waves' arenas grow, and that rows of ended instances are reused."""

import jax
import numpy as np
import pytest
from asking_models import embed, make_params, score, turn
from pools_of_waves import note_pool_rows

import edbatch as eb
from edbatch.waves.asked_values import returned_handles

pytestmark = pytest.mark.usefixtures("small_arenas")


def walk(params, instance):
    """Takes `steps` steps; some instances end early, others run for long."""
    word, steps = instance
    first = state = embed(params, word)[0]
    for k in range(steps):
        scores = eb.value(score(params, state))
        state = turn(params, state, 1.0 if scores[0] > 0 else 0.5 + k % 3)
    return first, state


def sample(count, longest, seed=0):
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(12)), int(rng.integers(longest))) for _ in range(count)]


def check(outputs, params, instances):
    for k, each in enumerate(instances):
        for found, expected in zip(outputs, walk(params, each), strict=True):
            np.testing.assert_allclose(found[k], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_moved_values_are_the_same_values(seed):
    params, instances = make_params(seed), sample(20, 25, seed)
    found = eb.batch(walk).rollout(params, instances)
    check(found.outputs, params, instances)
    assert found.report.moves >= 2


def test_arenas_hold_what_is_in_flight():
    """One long walk next to many short ones that come and go needs few rows."""
    params = make_params()
    batched = eb.batch(walk)
    instances = [(1, 60), *sample(3, 3)]
    batched.rollout(params, instances)
    (sizes,) = batched.states.default().waves.values()
    before = dict(sizes.bucket.sizes)
    found = batched.rollout(params, instances * 2)
    check(found.outputs, params, instances * 2)
    for name, size in sizes.bucket.sizes.items():
        assert size <= 4 * before[name]


def test_waves_of_a_warm_model_compile_nothing():
    params = make_params()
    batched = eb.batch(walk)
    for seed in range(3):
        batched(params, sample(32, 20, seed))
    with eb.set_stance("fail_on_compile"):
        for count in (32, 31, 8, 1, 2, 3, 20):
            instances = sample(count, 20, seed=count)
            check(batched(params, instances), params, instances)


@pytest.mark.parametrize("block", [True, False])
def test_a_warm_up_compiles_what_waves_need(block):
    params = make_params()
    batched = eb.batch(walk)
    with eb.use_tiers("auto"):
        done = batched.warm_up(sample(32, 20), [32, 4], params=params, block=block)
        assert done.wait() and done.programs >= 1
        with eb.set_stance("fail_on_compile"):
            for count in (32, 4, 17, 1):
                instances = sample(count, 20, seed=count)
                check(batched(params, instances), params, instances)
    eb.wait_for_compilations()
    ran = [each.tier for each in eb.compile_report() if "waves" in each.function]
    assert ran[-1] == "fine"


@eb.cell
def read_image(params, image):
    return image[:6] * params["embed"]["W"][0, 0]


def test_programs_are_compiled_ahead_for_all_sizes_of_large_inputs(monkeypatch):
    rows = note_pool_rows(monkeypatch)
    params = {"embed": {"W": np.full((1, 1), 2.0, np.float32)}}
    batched = eb.batch(lambda params, image: eb.value(read_image(params, image)))
    images = np.random.default_rng(0).normal(size=(70, 1024)).astype(np.float32)

    def run(count):
        runner, model = batched.wave_runner(params)
        runs = [runner.start(k, lambda k=k: model(images[k])) for k in range(count)]
        for run, [answer] in runner.answers(runner.launch(runs)):
            np.testing.assert_allclose(answer, 2 * images[run.index][:6], rtol=1e-6)
        return runner.execution

    execution = run(40)
    for function, arguments in execution.calls():
        function.warm_up(*arguments)
    with eb.set_stance("fail_on_compile"):
        for count in (70, 1, 40):
            run(count)
    assert rows == [64, 128, 64, 64]


def test_many_instances_in_flight():
    params = make_params()
    instances = [(k % 12, k % 3) for k in range(10_000)]
    outputs = eb.batch(walk)(params, instances)
    for k in np.random.default_rng(0).integers(10_000, size=20).tolist():
        one = walk(params, instances[k])[1]
        np.testing.assert_allclose(outputs[1][k], one, rtol=1e-4, atol=1e-5)


def test_wide_waves_after_narrow_ones():
    params = make_params()
    batched = eb.batch(walk)
    for count in (1, 70, 3, 200):
        instances = sample(count, 6, count)
        check(batched(params, instances), params, instances)


def test_deep_recursion():
    def model(params, depth):
        def visit(state, depth):
            if not depth:
                return eb.value(score(params, state))[0], state
            found, state = visit(turn(params, state, 1.0), depth - 1)
            return found, turn(params, state, 1.0 if found > 0 else 0.5)

        return visit(embed(params, 1)[0], depth)[1]

    params = make_params()
    depths = [300, 0, 7]
    found = eb.batch(model)(params, depths)
    for one, depth in zip(found, depths, strict=True):
        expected = jax.tree.map(np.asarray, model(params, depth))
        np.testing.assert_allclose(one, expected, rtol=1e-3, atol=1e-4)


def test_few_rows_move_within_their_arenas():
    """A long walk among many short ones: at most an eighth of the rows are in use."""
    params, batched = make_params(), eb.batch(walk)
    runner, model = batched.wave_runner(params)
    shifted = []
    shift = runner.execution.values._shift
    runner.execution.values._shift = lambda *args: shifted.append(1) or shift(*args)
    long = runner.start(0, lambda: model((1, 5)))
    for k in range(60):
        crowd = sample(60 if k == 0 else 3, 1, seed=k)
        runs = [runner.start(1 + i, lambda e=e: model(e)) for i, e in enumerate(crowd)]
        own = [returned_handles(run) for run in runs]
        for run, handles in zip(runs, own, strict=True):
            run.asked = handles
        for run, values in runner.answers(
            runner.launch([*[long][: k % 15 == 0], *runs])
        ):
            if run is long:
                runner.resume(run, values)
                continue
            expected = jax.tree.leaves(walk(params, crowd[run.index - 1]))
            for found, other in zip(values, expected, strict=True):
                np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5)
            runner.release(run)
    assert shifted
    while not long.ended:
        for run, values in runner.answers(runner.launch([long])):
            runner.resume(run, values)
    long.asked = returned_handles(long)
    for _, values in runner.answers(runner.launch([long])):
        for found, other in zip(values, walk(params, (1, 5)), strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-5)
