"""Requests leave nothing behind, however they end; answers keep nothing else alive.

Nothing else cleans up after requests that end without a wave.
"""

import gc
import time
import weakref
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from asking_models import embed, make_params, score

import edbatch as eb
from edbatch.policies.serving import ServingHeuristic
from edbatch.policies.serving.choices import OLDEST
from edbatch.waves.runner import WaveRunner

COUNT = 40


class Kept:
    """An object that a model returns, or that its exception holds."""


class Failure(Exception):
    def __init__(self, kept):
        super().__init__("not this one")
        self.kept = kept


def constant(params, kept):
    return kept


def constant_after_a_cell(params, kept):
    embed(params, 1)
    return kept


def failure(params, kept):
    raise Failure(kept)


def failure_after_a_cell(params, kept):
    embed(params, 1)
    raise Failure(kept)


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


@pytest.mark.parametrize(
    "model", [constant, constant_after_a_cell, failure, failure_after_a_cell]
)
def test_requests_that_end_without_a_wave(model):
    made = []
    with eb.Server(eb.batch(model), make_params()) as server:
        for _ in range(COUNT):
            kept = Kept()
            made.append(weakref.ref(kept))
            future = server.submit_nowait(kept)
            del kept
            if model in (failure, failure_after_a_cell):
                assert isinstance(future.exception(60), Failure)
            else:
                assert isinstance(future.result(60), Kept)
            del future
        gc.collect()
        # The server's thread may still refer to the last one.
        assert sum(each() is not None for each in made) <= 1
        runners = [each for each in gc.get_objects() if type(each) is WaveRunner]
        assert runners, "the server has one"
        for each in runners:
            assert len(each.tape.node_type) + len(each.pending) <= 1
            assert len(each._ended) <= 1


@eb.cell
def next_number(params, x):
    return x + params


@pytest.mark.parametrize("decided", [False, True])
@pytest.mark.parametrize("others", [range(3, 30), range(300, 600, 30)])
def test_a_long_request_that_is_dropped_before_its_wave(others, decided):
    """More of its calls are pending than the limit, and none of them must run."""
    dropped = []

    def model(params, steps):
        number = next_number(params, 0.0)
        for _ in range(steps):
            number = next_number(params, number)
        if steps > 1000:
            dropped[-1].cancel()  # as if its client disconnected
        return number

    options = {"policy": ServingHeuristic("oldest", OLDEST)} if decided else {}
    with eb.Server(eb.batch(model), jnp.float32(1), **options) as server:
        for future in server.submit_many([3, 4]):
            future.result(60)
        before = server.stats().nodes
        for _ in range(3):
            with server._loop._queue.changed:  # all requests arrive in one turn
                dropped += server.submit_many([4200])
                futures = server.submit_many(others)
            for steps, future in zip(others, futures, strict=True):
                assert future.result(60) == steps + 1
        assert server.stats().nodes - before == 3 * sum(1 + each for each in others)


def test_numbers_of_instances_begin_again():
    """A server with a thousand requests a second uses up all numbers in 25 days."""

    def model(params, steps):
        number = next_number(params, 0.0)
        if steps:
            eb.value(number)
        return next_number(params, number)

    with eb.Server(eb.batch(model), jnp.float32(1)) as server:
        assert server.submit_nowait(1).result(60) == 2
        (generation,) = server._loop._generations
        generation.runner._started = 2**31 - 2
        for steps in (1, 0, 1, 0, 1):
            assert server.submit_nowait(steps).result(60) == 2


def test_an_answer_holds_no_wave():
    def model(params, word):
        return {"state": score(params, embed(params, word)[0]), "word": word}

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        futures = [server.submit_nowait(word) for word in range(4)]
        for word, future in enumerate(futures):
            answer = future.result(60)
            assert answer["state"].base is None
            np.testing.assert_allclose(
                answer["state"], model(params, word)["state"], rtol=1e-5, atol=1e-6
            )


@dataclass
class Answer:
    state: object


class Slots:
    __slots__ = ("states",)

    def __init__(self, states):
        self.states = states


async def later(state):
    return state


@pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited")
@pytest.mark.filterwarnings("ignore:Python iterable type")  # from JAX
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (Answer, "an object of type Answer, which is no pytree"),
        (lambda state: [Slots({"a": (state,)})], "an object of type Slots"),
        (lambda state: {state}, "an object of type set"),
        (lambda state: (state for _ in range(2)), "an iterator, of type generator"),
        (lambda state: map(str, [state]), "an iterator, of type map"),
        (later, "returns a coroutine, which nobody would wait for; write the model"),
        (lambda state: {1: state, "a": state}, "use dict keys of one type"),
    ],
    ids=["data class", "slots", "set", "generator", "map", "coroutine", "keys"],
)
def test_results_in_which_nobody_would_find_handles(result, message):
    def model(params, word):
        if word < 0:
            return Answer(word)  # allowed, because it holds no handles
        if word == 2:  # only its traceback leads to the handle
            state = embed(params, word)
            try:
                raise ValueError(word)
            except ValueError as error:
                return Answer(error), state[0]
        state, _ = embed(params, word)
        return result(state) if word else state

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        bad, good, plain, raised = map(server.submit_nowait, (1, 0, -1, 2))
        with pytest.raises(eb.RecordingError, match=message):
            bad.result(60)
        np.testing.assert_allclose(good.result(60), model(params, 0))
        assert plain.result(60) == Answer(-1)
        assert isinstance(raised.result(60)[0].state, ValueError)


@pytest.mark.parametrize("name", ["greedy", "zoo:lattice-lstm"])
def test_policies_for_minibatches_by_name(name):
    def model(params, word):
        return embed(params, word)

    with pytest.raises(eb.EdbatchError, match=r"for minibatches belongs to eb\.batch"):
        eb.Server(eb.batch(model), make_params(), policy=name)


def is_gone(reference, within_s=20.0):
    end = time.monotonic() + within_s
    while reference() is not None and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return reference() is None


def test_parameters_that_were_swapped_out_of_an_idle_server():
    def points(params, word):
        return score(params, embed(params, word)[0])

    params = make_params()
    with eb.Server(eb.batch(points), params) as server:
        server.submit_nowait(1).result()
        old = [weakref.ref(each) for each in jax.tree.leaves(params)]
        params = jax.tree.map(lambda leaf: leaf + 1, params)
        server.swap_params(params)
        assert all(is_gone(each) for each in old)
        found = server.submit_nowait(1).result()
        np.testing.assert_allclose(found, points(params, 1), rtol=1e-5)


@pytest.mark.parametrize("name", ["drain", "close"])
def test_timeouts_are_checked_before_anything_ends(name):
    params = make_params()
    message = f"the timeout of {name} of eb.Server is"
    with eb.Server(eb.batch(embed), params) as server:
        for timeout in (float("nan"), -1, "x", True):
            with pytest.raises(eb.EdbatchError, match=message):
                getattr(server, name)(timeout)
        server.submit_nowait(1).result(60)
        assert getattr(server, name)(float("inf"))
