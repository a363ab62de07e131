"""Event loops get answers in groups, and requests may be submitted in groups."""

import asyncio
import threading

import pytest
from asking_models import steps
from compared_answers import assert_same
from held_server import HeldServer

import edbatch as eb


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


def count_wake_ups(loop):
    """Returns a list that grows with each wake-up of a loop."""
    counted, call = [], loop.call_soon_threadsafe

    def counting(function, *arguments, **options):
        counted.append(function)
        return call(function, *arguments, **options)

    loop.call_soon_threadsafe = counting
    return counted


def test_a_loop_is_woken_once_for_all_that_end_together():
    async def main(held):
        wake_ups = count_wake_ups(asyncio.get_running_loop())
        futures = [held.server.submit_in_loop(2) for _ in range(24)]
        ended = []
        for k, each in enumerate(futures):
            each.add_done_callback(lambda _, k=k: ended.append(k))
        held.go_on.set()
        found = await asyncio.gather(*futures)
        return found, ended, len(wake_ups)

    with HeldServer() as held:
        found, ended, wake_ups = asyncio.run(main(held))
        for each in found:
            assert_same(each, steps(held.params, 2))
    assert ended == list(range(24))
    assert wake_ups == 1


def test_one_of_many_is_cancelled_and_one_fails():
    async def main(held):
        server = held.server
        tasks = [
            asyncio.ensure_future(server.submit(k))
            for k in (1, 2, "fail", "stop", 3, 10**9)
        ]
        await asyncio.sleep(0)
        tasks[1].cancel()
        held.go_on.set()
        tasks[5].get_loop().call_later(0.2, tasks[5].cancel)
        return await asyncio.gather(*tasks, return_exceptions=True)

    with HeldServer() as held:
        first, second, failed, stopped, last, endless = asyncio.run(main(held))
        assert_same(first, steps(held.params, 1))
        assert_same(last, steps(held.params, 3))
        assert isinstance(second, asyncio.CancelledError)
        assert isinstance(endless, asyncio.CancelledError)
        assert isinstance(failed, ValueError)
        assert isinstance(stopped, RuntimeError)
        assert isinstance(stopped.__cause__, StopIteration)
        assert held.server.drain(60)
        assert held.server.stats().cancelled == 2


def test_a_future_that_is_cancelled_outside_cancels_that_of_the_loop():
    async def main(held):
        request = held.server.submit_nowait(1)
        future = held.server._answers.future(request)
        threading.Thread(target=request.cancel).start()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(future, 60)

    with HeldServer() as held:
        asyncio.run(main(held))


def test_a_closed_event_loop_ends_nothing(caplog):
    async def leave(held):
        futures.append(held.server.submit_in_loop(2))

    async def ask(held):
        own = [held.server.submit_in_loop(k) for k in range(4)]
        held.go_on.set()
        return await asyncio.gather(*own)

    futures = []
    with HeldServer() as held:
        asyncio.run(leave(held))  # its event loop is closed before the answer arrives
        for k, each in enumerate(asyncio.run(ask(held))):
            assert_same(each, steps(held.params, k))
        assert held.server.is_running
        assert_same(held.server.submit_nowait(3).result(60), steps(held.params, 3))
    assert not caplog.records and not futures[0].done()


def test_a_callback_that_raises_keeps_no_answer_from_others():
    async def main(held):
        told = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        futures = [held.server.submit_in_loop(k) for k in range(5)]
        futures[0].add_done_callback(lambda _: 1 / 0)
        held.go_on.set()
        return await asyncio.gather(*futures), told

    with HeldServer() as held:
        found, told = asyncio.run(main(held))
        for k, each in enumerate(found):
            assert_same(each, steps(held.params, k))
    assert [type(each) for each in told] == [ZeroDivisionError]


def test_loops_are_told_when_the_server_is_closed():
    async def main(held):
        tasks = [asyncio.ensure_future(held.server.submit(10**9)) for _ in range(3)]
        await asyncio.sleep(0)
        held.go_on.set()
        held.server.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    with HeldServer() as held:
        found = asyncio.run(main(held))
    assert [type(each) for each in found] == [eb.errors.ServerClosedError] * 3


def test_many_are_submitted_in_order_with_one_wake_up(monkeypatch):
    notified = []
    with HeldServer() as held:
        changed = held.server._queue.changed
        notify = changed.notify
        monkeypatch.setattr(changed, "notify", lambda *n: notified.append(notify(*n)))
        futures = held.server.submit_many(k % 4 for k in range(12))
        assert held.server.submit_many([]) == []
        assert len(notified) == 1
        futures[5].cancel()
        held.go_on.set()
        for k, each in enumerate(futures):
            if k != 5:
                assert_same(each.result(60), steps(held.params, k % 4))
        stats = held.server.stats()
    assert (stats.submitted, stats.cancelled, stats.refused) == (13, 1, 0)


def test_many_are_taken_all_or_none():
    with HeldServer(max_waiting=4) as held:
        server = held.server
        waiting = server.submit_many([1, 2])
        with pytest.raises(eb.ServerFullError, match="so none was accepted; try"):
            server.submit_many([1, 2, 3])
        with pytest.raises(eb.ServerFullError, match="submit fewer at once"):
            server.submit_many(range(5))
        stats = server.stats()
        assert (stats.waiting, stats.refused, stats.submitted) == (2, 8, 3)
        waiting[0].cancel()  # makes room in the queue
        waiting += server.submit_many([3, 0, 1])
        held.go_on.set()
        for count, each in zip((2, 3, 0, 1), waiting[1:], strict=True):
            assert_same(each.result(60), steps(held.params, count))
        with pytest.raises(eb.EdbatchError, match="deadline_ms of a request"):
            server.submit_many([1], deadline_ms="soon")
        with pytest.raises(eb.EdbatchError, match="what submit_many takes"):
            server.submit_many(3)
        server.drain(60)
        with pytest.raises(eb.errors.ServerClosedError):
            server.submit_many([1, 2])
        assert server.stats().refused == 8
