"""How requests end: counted before the client is notified; answers share no memory."""

import gc
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.serving.request import Request, copy_of, late
from edbatch.serving.request_future import RequestFuture


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


@eb.cell
def double(params, x):
    return params * x


def model(params, x):
    if x < 0:
        raise ValueError("below zero")
    return double(params, x)


def test_counts_are_there_when_a_client_is_told():
    told = {}
    with eb.Server(eb.batch(model), jnp.float32(2)) as server:
        server.submit_nowait(1.0).result()
        held = threading.Event()
        first = server.submit_nowait(1.0)
        first.add_done_callback(lambda future: held.wait(60))
        for name, x, deadline_ms in (
            ("failed", -1.0, None),
            ("expired", 1.0, 0.0),
            ("answered", 1.0, None),
        ):
            future = server.submit_nowait(x, deadline_ms=deadline_ms)
            future.add_done_callback(
                lambda future, name=name: told.setdefault(name, server.stats())
            )
        held.set()
        server.drain()
    assert told["failed"].failed == 1
    assert told["expired"].expired == 1
    assert told["answered"].answered == 3


def test_a_closed_server_counts_no_request_as_too_many():
    with eb.Server(eb.batch(model), jnp.float32(2), max_waiting=1) as server:
        with pytest.raises(eb.ServerFullError):
            server.submit_many([1.0] * 5)
        assert server.stats().refused == 5
        server.drain()
        with pytest.raises(eb.ServerClosedError):
            server.submit_nowait(1.0)
        assert server.stats().refused == 5


def test_an_ended_server_takes_neither_parameters_nor_a_warm_up():
    held, started = threading.Event(), threading.Event()

    def waiting(params, x):
        started.set()
        held.wait(60)
        return double(params, x)

    with eb.Server(eb.batch(waiting), jnp.float32(2)) as server:
        server.submit_nowait(1.0)
        started.wait(60)
        last = server.submit_nowait(1.0)
        assert not server.drain(0)
        with pytest.raises(eb.ServerClosedError, match="drained or closed"):
            server.warm_up([1.0])
        server.swap_params(jnp.float32(3))  # for waiting requests
        held.set()
        assert server.drain(60)
        assert last.result() in (2, 3)
        with pytest.raises(eb.ServerClosedError, match="drained or closed"):
            server.swap_params(jnp.float32(3))


@pytest.mark.parametrize("form", ["alone", "beside a handle"])
def test_an_answer_of_values_holds_itself_alone(form):
    def asking(params, x):
        value = eb.value(double(params, x))
        own = np.arange(3)
        own.flags.writeable = False
        if form == "alone":
            return {"value": value, "own": own}
        return {"value": value, "own": own, "more": double(params, x)}

    with eb.Server(eb.batch(asking), jnp.float32(2)) as server:
        futures = server.submit_many([np.full(4, k, np.float32) for k in range(6)])
        for k, future in enumerate(futures):
            found = future.result(60)
            np.testing.assert_array_equal(found["value"], np.full(4, 2 * k))
            assert found["value"].base is None and found["value"].flags.writeable
            assert not found["own"].flags.writeable, "the model's own array is as it is"


def test_a_server_that_is_dropped_answers_and_ends():
    params = jnp.float32(2)
    batched = eb.batch(double)
    futures = eb.Server(batched, params).submit_many([1.0, 2.0, 3.0])
    [thread] = [each for each in threading.enumerate() if each.name == "edbatch server"]
    del batched
    assert [each.result(60).item() for each in futures] == [2, 4, 6]
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_a_late_request_is_told_its_whole_deadline():
    def slow(params, x):
        first = eb.value(double(params, x))
        time.sleep(0.02)
        return double(params, first)

    with eb.Server(eb.batch(slow), jnp.float32(2)) as server:
        server.submit_nowait(1.0).result()
        held = threading.Event()
        server.submit_nowait(1.0).add_done_callback(lambda future: held.wait(60))
        late = server.submit_nowait(1.0, deadline_ms=0)
        held.set()
        with pytest.raises(eb.DeadlineError, match="deadline of 0 ms"):
            late.result()


@pytest.mark.parametrize(
    ("deadline", "shown"), [(1e-6, "0.001"), (0.3, "300"), (4.0, "4,000")]
)
def test_a_deadline_is_told_as_it_was_asked_for(deadline, shown):
    submitted = 98765.4321  # seconds on a clock that started with the machine
    request = Request(1.0, 0, 0.0, submitted + deadline, submitted=submitted)
    with pytest.raises(eb.DeadlineError, match=f"deadline of {shown} ms"):
        raise late(request)


def test_a_request_that_is_about_to_end_cannot_be_cancelled():
    future = RequestFuture()
    assert future.claim() and not future.cancel() and not future.cancelled()
    future.set_result(3)
    assert future.result() == 3 and not future.cancel()


def test_a_cancelled_request_cannot_be_ended():
    cancelled = []
    future = RequestFuture(lambda: cancelled.append(True))
    future.add_done_callback(lambda one: cancelled.append(one.claim()))
    assert future.cancel() and future.cancel()
    assert not future.claim() and sorted(cancelled) == [False, True]


def test_one_that_many_cancel_while_it_ends_ends_once():
    for _ in range(300):
        future, found = RequestFuture(), []
        start = threading.Barrier(3)

        def cancel(future=future, found=found, start=start):
            start.wait()
            found.append(future.cancel())

        threads = [threading.Thread(target=cancel) for _ in range(2)]
        for each in threads:
            each.start()
        start.wait()
        if claimed := future.claim():
            future.set_result(1)
        for each in threads:
            each.join()
        assert found == [not claimed] * 2
        assert future.cancelled() != claimed


class Strange(Exception):
    def __init__(self, one, *, other):
        super().__init__(one, other)


def test_an_exception_is_copied_with_what_it_says():
    cause = KeyError("cause")
    try:
        try:
            raise cause
        except KeyError as error:
            raise eb.PlanError("not so") from error
    except eb.PlanError as error:
        error.add_note("in a wave")
        found = copy_of(error)
        assert found is not error and type(found) is eb.PlanError
        assert str(found) == "not so" and found.__cause__ is cause
        found.add_note("of one request")
        assert found.__notes__ == ["in a wave", "of one request"]
        assert error.__notes__ == ["in a wave"]
        assert found.__traceback__ is error.__traceback__
    strange = Strange(1, other=2)
    assert copy_of(strange) is strange, "it cannot be copied"


def test_requests_that_end_together_have_exceptions_of_their_own():
    held, go_on = threading.Event(), threading.Event()

    def waiting(params, x):
        eb.value(double(params, x))
        held.set()
        go_on.wait(60)
        return double(params, x)

    server = eb.Server(eb.batch(waiting), jnp.float32(2))
    futures = server.submit_many([1.0, 2.0, 3.0])
    held.wait(60)
    closing = threading.Thread(target=server.close)
    closing.start()
    go_on.set()
    closing.join()
    errors = [each.exception(60) for each in futures]
    ended = [each for each in errors if each is not None]
    assert len(ended) >= 2 and len({id(each) for each in ended}) == len(ended)
    assert {type(each) for each in ended} == {eb.ServerClosedError}


def test_a_future_that_a_client_has_begun_is_ended_all_the_same():
    future = RequestFuture()
    assert future.set_running_or_notify_cancel() and not future.cancel()
    assert future.claim()
