"""Tests wave sizes after a program cannot run, while other threads run waves."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive

import edbatch as eb
from edbatch.waves.wave_execution import WaveExecution

unbatched = Primitive("unbatched")
unbatched.def_abstract_eval(lambda x: x)


@eb.cell
def good(params, x):
    return params * x


@eb.cell
def bad(params, x):
    return params * unbatched.bind(x)


def make_model(go_on):
    def model(params, instance):
        name, x = instance
        if name == "bad":
            return eb.value(bad(params, x))
        first = eb.value(good(params, x))
        go_on.wait(60)
        return eb.value(good(params, first))

    return model


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


def test_a_wave_that_cannot_run_beside_one_that_runs(monkeypatch):
    """The other thread grows the sizes while this one runs its first wave."""
    failed, grown, begun, answered = (threading.Event() for _ in range(4))
    run, fetch, main = WaveExecution._run, WaveExecution.fetch, threading.main_thread()

    def run_in_turn(self, program, wave):
        if threading.current_thread() is main:
            begun.set()
            grown.wait(60)
        else:
            grown.set()
            answered.wait(60)
        return run(self, program, wave)

    def fetch_and_tell(self, values):
        answered.set()
        return fetch(self, values)

    monkeypatch.setattr(WaveExecution, "_run", run_in_turn)
    monkeypatch.setattr(WaveExecution, "fetch", fetch_and_tell)
    batched, params, errors = eb.batch(make_model(failed)), jnp.float32(3), []

    def run_bad():
        begun.wait(60)
        try:
            with eb.use_tiers("coarse"):
                batched(params, [("bad", np.float32(1))])
        except NotImplementedError as error:
            errors.append(error)
        finally:
            failed.set()

    other = threading.Thread(target=run_bad)
    other.start()
    found = batched(params, [("good", np.float32(k)) for k in range(3)])
    other.join()
    assert found.tolist() == [0, 9, 18]
    assert len(errors) == 1
    failed.set()
    many = [("good", np.float32(k)) for k in range(200)]
    assert batched(params, many).tolist() == [9 * k for k in range(200)]


def test_programs_that_cannot_run_leave_no_loop():
    go_on = threading.Event()
    go_on.set()
    batched, params = eb.batch(make_model(go_on)), jnp.float32(3)
    for k in range(3):
        with pytest.raises(NotImplementedError, match="unbatched"):
            batched(params, [("bad", np.float32(1)), ("good", np.float32(k))])
        assert batched(params, [("good", np.float32(k))]).tolist() == [9 * k]
