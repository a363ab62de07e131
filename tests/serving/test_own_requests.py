"""A model or callback that waits for a request of its own server gets an error."""

import asyncio

import pytest
from asking_models import make_params, steps
from compared_answers import assert_same

import edbatch as eb


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


def by_result(server):
    return server.submit_nowait(2).result()


def by_exception(server):
    return server.submit_nowait(2).exception(60)


def by_result_with_time(server):
    return server.submit_nowait(2).result(60)


def by_event_loop(server):
    return asyncio.run(server.submit(2))


@pytest.mark.parametrize(
    "wait", [by_result, by_exception, by_result_with_time, by_event_loop]
)
def test_a_model_that_waits_for_its_own_server_fails_alone(wait):
    def model(params, count):
        if count < 0:
            return wait(server)
        return steps(params, count)

    params = make_params()
    with eb.Server(eb.batch(model), params) as server:
        good = server.submit_nowait(3)
        bad = server.submit_nowait(-1)
        with pytest.raises(eb.ServerError, match="wait in another thread") as error:
            bad.result(60)
        assert wait is by_event_loop or "test_own_requests.py:" in str(error.value)
        assert_same(good.result(60), steps(params, 3))


def test_a_callback_that_waits_is_told():
    found = []
    params = make_params()
    with eb.Server(eb.batch(steps), params) as server:

        def ask(_):
            future = server.submit_nowait(2)
            try:
                future.result()
            except eb.ServerError as error:
                found.append((str(error), future))

        first = server.submit_nowait(1)
        first.add_done_callback(ask)
        assert_same(first.result(60), steps(params, 1))
        server.drain()
    [(message, future)] = found
    assert "callback" in message
    assert_same(future.result(60), steps(params, 2))


def test_a_model_may_look_and_another_server_may_be_waited_for():
    params = make_params()
    with eb.Server(eb.batch(steps), params) as other:
        seen = []

        def model(params, count):
            future = server.submit_nowait(count - 1) if count > 1 else None
            if future is not None:
                with pytest.raises(TimeoutError):
                    future.result(0)
                seen.append(future)
            assert other.submit_nowait(2).result(60) is not None
            return steps(params, count)

        with eb.Server(eb.batch(model), params) as server:
            assert_same(server.submit_nowait(2).result(60), steps(params, 2))
            server.drain()
        [one] = seen
        assert_same(one.result(60), steps(params, 1))
