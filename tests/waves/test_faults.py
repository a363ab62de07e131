"""Tests that an error in one instance ends the minibatch cleanly and leaks nothing."""

import asyncio
import contextvars
import gc
import signal
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking_models import embed, make_params, sample_words, score, shift_reduce, turn

import edbatch as eb
from edbatch.compilation.jax_settings import settings


@pytest.fixture(autouse=True)
def coarse():
    eb.use_tiers("coarse")
    yield
    eb.use_tiers("fine")


def test_an_exception_names_its_instance_and_ends_the_others():
    closed = []

    def model(params, k):
        try:
            state = embed(params, k)[0]
            for _ in range(3):
                eb.value(score(params, state))
                state = turn(params, state, 1.0)
                if k == 2:
                    raise ValueError("the second instance fails")
            return state
        finally:
            closed.append(k)

    with pytest.raises(ValueError, match="second instance") as caught:
        eb.batch(model)(make_params(), [0, 1, 2, 3, 4])
    assert "instance 2 of the minibatch" in "".join(caught.value.__notes__)
    assert sorted(closed) == [0, 1, 2, 3, 4]


def test_an_error_of_a_wave_names_no_instance():
    def model(params, k):
        return eb.value(score(params, embed(params, k)[0]))

    with pytest.raises(eb.PlanError, match="wave by wave") as caught:
        jax.jit(lambda own: eb.batch(model)(own, [1, 2, 3]))(make_params())
    assert not any("instance" in each for each in caught.value.__notes__)


def test_an_instance_that_fails_at_its_start():
    def model(params, k):
        if k == 1:
            raise KeyError(k)
        return turn(
            params, embed(params, int(eb.value(embed(params, k)[0])[0] > 0))[0], 1.0
        )

    batched = eb.batch(model)
    with pytest.raises(KeyError) as caught:
        batched.rollout(make_params(), [0, 1, 2])
    assert "instance 1" in "".join(caught.value.__notes__)
    assert batched(make_params(), [0, 2]).shape == (2, 6)


@pytest.mark.parametrize("asks", [False, True])
def test_what_ends_a_program_names_its_instance_and_ends_the_others(asks):
    closed = []

    def model(params, k):
        try:
            state = embed(params, k)[0]
            if asks:
                eb.value(state)
            if k == 2:
                raise SystemExit(3)
            eb.value(turn(params, state, 1.0))
            return state
        finally:
            closed.append(k)
            if k == 0:
                raise SystemExit(4)  # during clean-up

    with pytest.raises(SystemExit) as caught:
        eb.batch(model)(make_params(), [0, 1, 2, 3])
    assert caught.value.code == 3
    assert "instance 2 of the minibatch" in "".join(caught.value.__notes__)
    assert sorted(closed) == ([0, 1, 2, 3] if asks else [0, 1, 2])


SETTINGS = [
    lambda: jax.default_matmul_precision("highest"),
    lambda: jax.default_device(jax.devices()[0]),
    lambda: jax.numpy_rank_promotion("warn"),
    lambda: jax.enable_x64(not jax.config.jax_enable_x64),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_of_jax_around_a_value_is_refused(setting):
    """It would apply to other instances, and afterwards to the caller."""
    before, seen = settings(), set()

    def model(params, k):
        seen.add(settings())
        state = embed(params, k)[0]
        eb.value(state)
        if k == 2:
            with setting():
                eb.value(state)
        seen.add(settings())
        return state

    with pytest.raises(eb.RecordingError, match="leave the context manager") as caught:
        eb.batch(model)(make_params(), [0, 1, 2, 3])
    assert "instance 2 of the minibatch" in "".join(caught.value.__notes__)
    assert settings() == before and seen == {before}


def test_settings_of_jax_may_be_the_callers_or_be_left_before_a_value():
    def model(params, k):
        with jax.default_matmul_precision("highest"):
            state = embed(params, k)[0]
        eb.value(state)
        return state

    batched, params = eb.batch(model), make_params()
    expected = batched(params, [0, 1])
    with jax.default_matmul_precision("high"):
        before = settings()
        found = batched(params, [0, 1])
        assert settings() == before
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 3])
def test_an_event_loop_of_the_model_may_not_wait(count):
    def model(params, k):
        async def ask():
            return eb.value(embed(params, k)[0])

        return asyncio.run(ask())

    with pytest.raises(eb.RecordingError, match="in an event loop of asyncio"):
        eb.batch(model)(make_params(), range(count))
    assert asyncio.events._get_running_loop() is None


def test_the_callers_event_loop_goes_on():
    def model(params, k):
        return eb.value(embed(params, k)[0]).sum()

    async def call():
        found = eb.batch(model)(make_params(), range(3))
        await asyncio.sleep(0)
        return found

    expected = [model(make_params(), k) for k in range(3)]
    np.testing.assert_allclose(asyncio.run(call()), expected, rtol=1e-5)


def test_a_thread_of_the_model_may_not_ask():
    def model(params, k):
        handle, found = embed(params, k)[0], []

        def ask():
            try:
                eb.value(handle)
            except eb.RecordingError as error:
                found.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        raise found[0]

    with pytest.raises(eb.RecordingError, match="in a thread that the model starts"):
        eb.batch(model)(make_params(), range(2))


def test_clean_up_may_fail_or_ask_again():
    def model(params, k):
        state = embed(params, k)[0]
        try:
            eb.value(state)
            if k == 0:
                raise RuntimeError("first")
            eb.value(turn(params, state, 1.0))
        finally:
            if k == 1:
                raise OSError("in clean-up")
            eb.value(state)
        return state

    with pytest.raises(RuntimeError, match="first"):
        eb.batch(model)(make_params(), [0, 1, 2, 3])


def test_an_error_after_a_value_says_how_to_mend_the_model():
    def model(params, k):
        state = embed(params, k)[0]
        eb.value(state)
        return jnp.sin(state)

    with pytest.raises(eb.RecordingError, match=r"@eb\.cell"):
        eb.batch(model)(make_params(), [0, 1])


def test_handles_of_other_instances_are_refused():
    kept = []

    def model(params, k):
        state = embed(params, k)[0]
        kept.append(state)
        eb.value(state)
        return turn(params, kept[0], 1.0)

    with pytest.raises(eb.RecordingError, match="another instance"):
        eb.batch(model)(make_params(), [0, 1])
    del kept[:]

    def asks(params, k):
        kept.append(embed(params, k)[0])
        return eb.value(kept[0])

    with pytest.raises(eb.RecordingError, match="another instance"):
        eb.batch(asks)(make_params(), [0, 1])


@pytest.mark.parametrize("count", [1, 40])
def test_returned_handles_of_an_earlier_minibatch_are_refused(count):
    kept = []

    def model(params, k):
        state = embed(params, k % 12)[0]
        eb.value(state)
        if k == 3 and not kept:
            kept.append([turn(params, state, 1.0) for _ in range(200)][-1])
        return kept[0] if k == 30 else state

    batched, params = eb.batch(model), make_params()
    batched(params, [1, 3, 2])
    with pytest.raises(eb.RecordingError, match="another instance") as caught:
        batched(params, [*range(count), 30])
    notes = "".join(caught.value.__notes__)
    assert f"instance {min(30, count)} of the minibatch" in notes


def test_values_under_a_trace_are_refused():
    params = make_params()

    def traced(params, k):
        state = embed(params, k)[0]
        jax.eval_shape(lambda: jnp.asarray(eb.value(state)))
        return state

    with pytest.raises(eb.RecordingError, match="inside a function that JAX traces"):
        eb.batch(traced)(params, [0, 1])


def test_what_suspended_instances_hold_is_freed():
    class Held:
        pass

    alive = weakref.WeakSet()

    def model(params, k):
        held = Held()
        alive.add(held)
        state = embed(params, k)[0]
        eb.value(state)
        if k == 3:
            raise ValueError
        eb.value(turn(params, state, 1.0))
        del held
        return state

    batched = eb.batch(model)
    with pytest.raises(ValueError):
        batched(make_params(), [0, 1, 2, 3, 4])
    gc.collect()
    assert not alive
    batched(make_params(), [0, 1, 2])
    gc.collect()
    assert not alive


def test_what_context_variables_hold_is_freed():
    """Call stacks kept for the next instance have no context variables."""

    class Held:
        pass

    alive, current = weakref.WeakSet(), contextvars.ContextVar("current")

    def model(params, k):
        held = Held()
        alive.add(held)
        current.set(held)
        state = embed(params, k)[0]
        eb.value(state)
        assert current.get() is held
        return state

    batched, params = eb.batch(model), make_params()
    batched(params, [0, 1, 2])
    gc.collect()
    assert not alive
    with eb.Server(batched, params) as server:
        for future in [server.submit_nowait(k) for k in range(5)]:
            future.result(60)
        while server.stats().in_flight:
            time.sleep(0.001)
        gc.collect()
        assert not alive


def test_no_memory_is_kept_per_instance():
    batched, params = eb.batch(shift_reduce), make_params()
    sentences = sample_words(50)
    for _ in range(3):
        batched(params, sentences)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(10):
        batched(params, sentences)
    gc.collect()
    assert len(gc.get_objects()) - before < 200


def test_ctrl_c_ends_all_instances():
    closed = []

    def model(params, k):
        state = embed(params, k)[0]
        try:
            while True:
                eb.value(state)
                state = turn(params, state, 1.0)
                if k == 0 and len(closed) == 0:
                    time.sleep(0.002)
        finally:
            closed.append(k)

    batched, params = eb.batch(model), make_params()
    timer = threading.Timer(3.0, lambda: signal.raise_signal(signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        batched(params, [0, 1, 2])
    timer.join()
    assert sorted(closed) == [0, 1, 2]


def test_a_model_may_run_another_one():
    inner = eb.batch(shift_reduce)
    params = make_params()
    expected = np.asarray(inner(params, [[1, 2, 3]])[0][0])

    def model(unused, k):
        found = np.asarray(inner(params, [[1, 2, 3], [k]])[0][0])
        state = embed(unused, k)[0]
        eb.value(state)
        return turn(unused, state, float(found[0]))

    found = eb.batch(model)(params, [0, 1, 2])
    assert found.shape == (3, 6)
    one = turn(params, embed(params, 1)[0], float(expected[0]))
    np.testing.assert_allclose(found[1], one, rtol=1e-4, atol=1e-5)


def test_threads_run_minibatches_of_one_function():
    batched, params = eb.batch(shift_reduce), make_params()
    sentences = [sample_words(9, seed) for seed in range(4)]
    expected = [np.asarray(batched(params, each)[0]) for each in sentences]
    found = [None] * 4

    def run(k):
        for _ in range(3):
            found[k] = np.asarray(batched(params, sentences[k])[0])

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
