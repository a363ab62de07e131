"""The server answers as the model would, also among requests that fail."""

import asyncio
import gc
import os
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest
from asking_models import (
    embed,
    grow_tree,
    make_params,
    noisy,
    sample_words,
    score,
    shift_reduce,
    turn,
)
from compared_answers import assert_same

import edbatch as eb
from edbatch.compilation.worker import wait_for_compilations
from edbatch.errors import ServerClosedError
from edbatch.serving import generation
from edbatch.serving.wave_loop import WaveLoop
from edbatch.waves.runner import WaveRunner
from edbatch.waves.value_rows import ValueRows


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


@pytest.fixture(params=["whole", "in parts"])
def parts(request, monkeypatch):
    """Requests run all together or in two parts."""
    if request.param == "in parts":
        monkeypatch.setattr(generation, "_TWO_PARTS", 2)


def walk(params, instance):
    """Takes `steps` steps, each after reading a value; fails at step `fails_at`."""
    steps, fails_at = instance
    state = embed(params, steps % 12)[0]
    for k in range(steps):
        if k == fails_at:
            raise ValueError("told to fail")
        state = turn(
            params, state, 1.0 if eb.value(score(params, state))[0] > 0 else 0.5
        )
    return {"state": state, "name": f"{steps} steps"}


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("model", "instances"), [(shift_reduce, sample_words(25)), (grow_tree, range(20))]
)
def test_answers_are_those_of_the_model(model, instances):
    params = make_params()
    with eb.Server(eb.batch(model), params, max_in_flight=7) as server:
        futures = [server.submit_nowait(each) for each in instances]
        for instance, future in zip(instances, futures, strict=True):
            assert_same(future.result(60), model(params, instance))
        stats = server.stats()
    assert stats.answered == stats.submitted == len(instances)
    assert stats.waves > 0 and stats.latency.p50 <= stats.latency.p99


def test_models_that_do_not_ask_are_served():
    params = make_params()
    with eb.Server(
        eb.batch(lambda params, word: embed(params, word)), params
    ) as server:
        futures = [server.submit_nowait(k) for k in range(12)]
        for k, future in enumerate(futures):
            assert_same(future.result(60), embed(params, k))


def test_requests_join_and_leave_at_any_wave():
    params = make_params()
    with eb.Server(eb.batch(walk), params) as server:
        long = server.submit_nowait((400, None))
        short = [server.submit_nowait((k % 3, None)) for k in range(20)]
        for k, future in enumerate(short):
            assert_same(future.result(60), walk(params, (k % 3, None)))
        assert not long.done()
        assert long.result(120)["name"] == "400 steps"


@pytest.mark.usefixtures("parts")
def test_a_poisoned_request_fails_alone():
    params = make_params()
    instances = [(5, k % 4 if k % 3 == 0 else None) for k in range(30)]
    with eb.Server(eb.batch(walk), params) as server:
        futures = [server.submit_nowait(each) for each in instances]
        for instance, future in zip(instances, futures, strict=True):
            if instance[1] is None:
                assert_same(future.result(60), walk(params, instance))
            else:
                with pytest.raises(ValueError, match="told to fail"):
                    future.result(60)
        stats = server.stats()
    assert (stats.failed, stats.answered) == (10, 20)


def test_oversized_and_unfit_requests_fail_alone():
    def model(params, word):
        state = embed(params, word)[0]
        for _ in range(word if word > 100 else 2):
            state = turn(params, state, 1.0)
        eb.value(state)
        return state

    params = make_params()
    with eb.Server(eb.batch(model), params, max_nodes=50) as server:
        good = [server.submit_nowait(k) for k in range(4)]
        large = server.submit_nowait(150)
        wide = server.submit_nowait(-(2**40))
        more = [server.submit_nowait(k) for k in range(4)]
        with pytest.raises(eb.RecordingError, match="max_nodes"):
            large.result(60)
        with pytest.raises(eb.RecordingError, match="does not fit int32"):
            wide.result(60)
        for k, future in enumerate([*good, *more]):
            assert_same(future.result(60), model(params, k % 4))


def test_a_request_is_refused_where_it_passes_the_limit():
    """It is refused at the limit, not at its end, and only if it exceeds the limit."""
    steps = []

    def model(params, count):
        state = embed(params, 1)[0]
        for k in range(count):
            steps.append(k)
            state = turn(params, state, 1.0)
        eb.value(state)
        for _ in range(count):
            state = turn(params, state, 1.0)
        return state

    params = make_params()
    with eb.Server(eb.batch(model), params, max_nodes=10) as server:
        before = server.submit_nowait(3).result(60)
        del steps[:]
        with pytest.raises(eb.RecordingError, match="more than 10 calls of cells"):
            server.submit_nowait(1000).result(60)
        assert len(steps) == 10
        # The limit applies to the calls between two values.
        assert_same(server.submit_nowait(9).result(60), model(params, 9))
        assert_same(server.submit_nowait(3).result(60), before)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("then", ["ends", "asks", "asks and ends"])
@pytest.mark.parametrize("asks_first", [False, True])
def test_who_swallows_the_refusal_is_refused(asks_first, then):
    """Its answer would be incomplete; the other requests keep their rows."""

    def model(params, size):
        state = embed(params, size % 12)[0]
        if asks_first:
            eb.value(state)
        try:
            for _ in range(size):
                state = turn(params, state, 1.0)
        except Exception:
            if then == "ends":
                return {"state": 1.0}
            eb.value(embed(params, 1)[0] if then == "asks" else state)
        return {"state": state}

    params = make_params()
    sizes = [3, 30, 4, 2, 50, 1]
    with eb.Server(eb.batch(model), params, max_nodes=10) as server:
        futures = [server.submit_nowait(each) for each in sizes]
        for size, future in zip(sizes, futures, strict=True):
            if size > 10:
                with pytest.raises(eb.RecordingError, match="more than 10 calls"):
                    future.result(60)
            else:
                assert_same(future.result(60), model(params, size))
        stats = server.stats()
    assert (stats.failed, stats.answered) == (2, 4)


@pytest.mark.usefixtures("parts")
def test_clean_up_of_failed_requests_leaves_nothing_behind():
    """Cells called by a ``finally`` clause are not part of the next wave."""

    def model(params, k):
        state = embed(params, k)[0]
        try:
            eb.value(state)
            if k % 2:
                raise ValueError("odd")
            eb.value(turn(params, state, 1.0))
        finally:
            turn(params, state, 2.0)
        return state

    params = make_params()
    with eb.Server(eb.batch(model, "greedy"), params) as server:
        futures = [server.submit_nowait(k) for k in range(12)]
        futures[4].cancel()
        for k, future in enumerate(futures):
            if k == 4:
                continue
            if k % 2:
                with pytest.raises(ValueError, match="odd"):
                    future.result(60)
            else:
                assert_same(future.result(60), model(params, k))


def test_a_full_queue_refuses_at_once():
    started, go_on = threading.Event(), threading.Event()

    def model(params, word):
        started.set()
        go_on.wait(60)
        return embed(params, word)[0]

    with eb.Server(
        eb.batch(model), make_params(), max_waiting=3, max_in_flight=1
    ) as server:
        first = server.submit_nowait(0)
        started.wait(60)
        waiting = [server.submit_nowait(k) for k in range(3)]
        with pytest.raises(eb.ServerFullError, match="3 requests are waiting"):
            server.submit_nowait(4)
        go_on.set()
        assert [each.result(60).shape for each in (first, *waiting)] == [(6,)] * 4
        assert server.stats().refused == 1


@pytest.mark.usefixtures("parts")
def test_cancelled_and_late_requests_end():
    params = make_params()
    with eb.Server(eb.batch(walk), params) as server:
        server.submit_nowait((2, None)).result(60)
        endless = server.submit_nowait((10**9, None))
        late = server.submit_nowait((10**9, None), deadline_ms=200)
        dead = server.submit_nowait((1, None), deadline_ms=0)
        with pytest.raises(eb.DeadlineError, match="deadline of 200 ms"):
            late.result(60)
        with pytest.raises(TimeoutError):
            dead.result(60)
        assert endless.cancel()
        assert_same(server.submit_nowait((3, None)).result(60), walk(params, (3, None)))
        for _ in range(100):
            if server.stats().in_flight == 0:
                break
            time.sleep(0.02)
        stats = server.stats()
    assert (stats.cancelled, stats.expired, stats.in_flight) == (1, 2, 0)


def test_requests_of_higher_priority_run_first():
    started, go_on, order = threading.Event(), threading.Event(), []

    def model(params, word):
        if word == 0:
            started.set()
            go_on.wait(60)
        order.append(word)
        return embed(params, word)[0]

    with eb.Server(eb.batch(model), make_params(), max_in_flight=1) as server:
        server.submit_nowait(0)
        started.wait(60)
        for word, priority in ((1, 0), (2, 5), (3, 0), (4, 5)):
            server.submit_nowait(word, priority=priority)
        go_on.set()
    assert order == [0, 2, 4, 1, 3]


def test_an_event_loop_submits_and_cancels():
    params = make_params()

    async def main(server):
        found = await asyncio.gather(*(server.submit((k, None)) for k in range(6)))
        task = asyncio.create_task(server.submit((10**9, None)))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="told to fail"):
            await server.submit((3, 1))
        return found

    with eb.Server(eb.batch(walk), params) as server:
        found = asyncio.run(main(server))
    for k, each in enumerate(found):
        assert_same(each, walk(params, (k, None)))


def test_an_event_loop_goes_on_while_the_server_drains():
    params = make_params()
    ticks = []

    async def tick():
        while True:
            ticks.append(len(ticks))
            await asyncio.sleep(0.001)

    async def main():
        async with eb.Server(eb.batch(walk), params) as server:
            tasks = [asyncio.create_task(server.submit((k, None))) for k in (5, 40, 0)]
            clock = asyncio.create_task(tick())
        assert not server.is_running
        ticked = len(ticks)
        clock.cancel()
        found = await asyncio.gather(*tasks)
        with pytest.raises(ServerClosedError):
            await server.submit((1, None))
        return found, ticked

    found, ticked = asyncio.run(main())
    for k, each in zip((5, 40, 0), found, strict=True):
        assert_same(each, walk(params, (k, None)))
    assert ticked > 1


def test_a_block_that_raises_closes_the_server():
    async def main(task_is_cancelled):
        async with eb.Server(eb.batch(walk), make_params()) as server:
            futures.append(server.submit_nowait((10**9, None)))
            servers.append(server)
            if not task_is_cancelled:
                raise ValueError("told to fail")
        raise AssertionError("an endless request was answered")

    async def cancelled():
        task = asyncio.create_task(main(True))
        while not (servers and servers[-1].stats().in_flight):
            await asyncio.sleep(0.001)
        task.cancel()
        await task

    futures, servers = [], []
    with pytest.raises(ValueError, match="told to fail"):
        asyncio.run(main(False))
    assert not servers.pop().is_running
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    for each in futures:
        with pytest.raises(ServerClosedError):
            each.result(60)


@pytest.mark.usefixtures("parts")
def test_parameters_are_swapped_without_a_stop():
    first, second = make_params(0), make_params(1)
    with eb.Server(eb.batch(walk), first) as server:
        server.submit_nowait((3, None)).result(60)
        long = server.submit_nowait((200, None))
        while server.stats().in_flight == 0 and not long.done():
            time.sleep(0.001)
        server.swap_params(second)
        assert_same(server.submit_nowait((4, None)).result(60), walk(second, (4, None)))
        assert_same(long.result(120), walk(first, (200, None)))
        with pytest.raises(eb.PlanError, match="the server was started for parameters"):
            server.swap_params({"other": second["table"]})


def test_what_comes_after_a_swap_runs_with_the_new_parameters(monkeypatch):
    """Even if both happen while the server checks for new parameters."""
    first, second = make_params(0), make_params(1)
    take, futures = WaveLoop._take_params, []

    def take_and_swap(self):
        take(self)
        if not futures:
            server.swap_params(second)
            futures.append(server.submit_nowait((3, None)))

    with eb.Server(eb.batch(walk), first) as server:
        monkeypatch.setattr(WaveLoop, "_take_params", take_and_swap)
        server.submit_nowait((1, None)).result(60)
        assert_same(futures[0].result(60), walk(second, (3, None)))


@pytest.mark.usefixtures("parts")
def test_draining_answers_all_and_closing_does_not():
    params = make_params()
    server = eb.Server(eb.batch(walk), params)
    futures = [server.submit_nowait((k % 5, None)) for k in range(20)]
    assert server.drain(120)
    assert all(each.result(0)["name"] for each in futures)
    with pytest.raises(eb.ServerClosedError, match="no requests any more"):
        server.submit_nowait((1, None))
    other = eb.Server(eb.batch(walk), params)
    futures = [other.submit_nowait((10**9, None)) for _ in range(3)]
    other.close()
    for each in futures:
        with pytest.raises(eb.ServerClosedError, match="before it answered"):
            each.result(10)


@pytest.mark.usefixtures("parts")
def test_keys_follow_from_the_number_of_the_request():
    def model(params, word):
        state = noisy(embed(params, word)[0])
        eb.value(state)
        return noisy(state)

    params, key = make_params(), jax.random.key(7)
    with eb.Server(eb.batch(model), params, rng=key) as server:
        futures = [server.submit_nowait(3) for _ in range(4)]
        found = [each.result(60) for each in futures]
    for k, each in enumerate(found):
        with eb.cell_keys(key, instance=k):
            assert_same(each, model(params, 3))


def test_moving_rows_is_compiled_before_arenas_are_full():
    with eb.Server(eb.batch(shift_reduce), make_params()) as server:
        words = sample_words(1)[0]
        for _ in range(10):
            server.submit_nowait(words).result(60)
        wait_for_compilations()
        execution = server._loop._generations[-1].runner.execution
        for function, arguments in execution.calls():
            assert function.missing(*arguments) is None


def test_a_warm_server_compiles_nothing():
    params = make_params()
    with eb.use_tiers("fine"), eb.Server(eb.batch(walk), params) as server:
        assert server.warm_up([(k % 9, None) for k in range(60)]).done
        with eb.set_stance("fail_on_compile"):
            futures = [server.submit_nowait((k % 9, None)) for k in range(60)]
            for k, future in enumerate(futures):
                assert_same(future.result(60), walk(params, (k % 9, None)))
        with pytest.raises(ValueError, match="told to fail"):
            server.warm_up([(3, 1)])


def test_a_small_sample_warms_up_a_full_server():
    """Warm-up repeats the sample up to the number of requests that may be in flight."""
    params = make_params()
    with (
        eb.use_tiers("fine"),
        eb.Server(eb.batch(walk), params, max_in_flight=100) as server,
    ):
        server.warm_up([(k, None) for k in range(4)])
        with eb.set_stance("fail_on_compile"), server._queue.changed:
            futures = [server.submit_nowait((k % 4, None)) for k in range(100)]
        with eb.set_stance("fail_on_compile"):
            for k, future in enumerate(futures):
                assert_same(future.result(60), walk(params, (k % 4, None)))
        assert server.warm_up([]).done


@pytest.mark.usefixtures("parts")
def test_a_wave_that_fails_ends_its_requests_and_not_the_server(monkeypatch):
    launch, failures = WaveRunner.launch, [MemoryError("no memory for a wave")]

    def once(self, waiting, **options):
        if failures:
            raise failures.pop()
        return launch(self, waiting, **options)

    params = make_params()
    with eb.Server(eb.batch(walk), params) as server:
        server.submit_nowait((2, None)).result(60)
        failures[:] = [MemoryError("no memory for a wave")]
        monkeypatch.setattr(WaveRunner, "launch", once)
        with pytest.raises(MemoryError, match="for a wave"):
            server.submit_nowait((3, None)).result(60)
        found = server.submit_nowait((3, None)).result(60)
    assert_same(found, walk(params, (3, None)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_leaves_no_client_waiting(monkeypatch):
    server = eb.Server(eb.batch(walk), make_params())
    server.submit_nowait((2, None)).result(60)
    assert server.is_running

    def broken(self):
        raise RuntimeError("the thread dies")

    monkeypatch.setattr(WaveLoop, "_admit", broken)
    with pytest.raises(eb.ServerClosedError, match="before it answered"):
        server.submit_nowait((3, None)).result(60)
    server.drain(60)
    assert not server.is_running
    with pytest.raises(eb.ServerClosedError):
        server.submit_nowait((3, None))


def test_memory_stays_flat():
    params = make_params()
    with eb.Server(eb.batch(walk), params) as server:

        def load():
            futures = [
                server.submit_nowait((k % 7, 2 if k % 11 == 0 else None))
                for k in range(300)
            ]
            for k, each in enumerate(futures):
                if k % 13 == 0:
                    each.cancel()
            for each in futures:
                if not each.cancelled():
                    each.exception(60)

        for _ in range(3):
            load()
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(5):
            load()
        gc.collect()
        assert len(gc.get_objects()) - before < 1000


@pytest.mark.usefixtures("parts")
def test_results_on_their_way_hold_no_rows(monkeypatch):
    """Room is made without moving rows while the other half is on the device."""
    moved, compact = [], ValueRows.compact

    def noted(rows):
        found = compact(rows)
        moved.append(sum(map(len, found.values())))
        return found

    monkeypatch.setattr(ValueRows, "compact", noted)
    params = make_params()

    def model(params, steps):
        state = embed(params, steps % 12)[0]
        for _ in range(steps):
            state = turn(params, state, 0.5)
        return state

    with eb.Server(eb.batch(model), params, max_in_flight=8) as server:
        futures = [server.submit_nowait(k % 12) for k in range(600)]
        for k, future in enumerate(futures):
            if k % 29 == 0:
                assert_same(future.result(60), model(params, k % 12))
    assert len(moved) > 1
    assert not any(moved)


def test_arguments_are_checked():
    params = make_params()
    with pytest.raises(eb.EdbatchError, match="batched function for one device"):
        eb.Server(walk, params)
    with pytest.raises(eb.EdbatchError, match="max_waiting"):
        eb.Server(eb.batch(walk), params, max_waiting=0)
    with eb.Server(eb.batch(walk), params) as server:
        with pytest.raises(eb.EdbatchError, match="deadline_ms"):
            server.submit_nowait((1, None), deadline_ms="soon")
        assert "0 requests waiting" in repr(server)


def test_requests_that_cannot_be_started_fail(monkeypatch):
    """A server that cannot continue ends, and leaves no client waiting."""
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    params = make_params()
    server = eb.Server(eb.batch(walk), params)
    server.submit_nowait((2, None)).result(60)

    def fails(params):
        raise MemoryError("no room for arenas")

    server._loop._new = fails
    server.swap_params(params)
    futures = server.submit_many([(1, None), (2, None), (3, None)])
    for future in futures:
        assert isinstance(future.exception(60), ServerClosedError)
    server._thread.join(60)
    assert not server.is_running and server.stats().failed == 3


@pytest.mark.parametrize(
    "use",
    [
        lambda server: server.submit_nowait((1, None)),
        lambda server: server.warm_up([(1, None)]),
    ],
    ids=["submit", "warm_up"],
)
def test_a_server_is_of_the_process_that_made_it(use):
    with eb.Server(eb.batch(walk), make_params()) as server:
        server.submit_nowait((2, None)).result(60)
        with server._queue.changed:  # another thread of the parent may hold the lock
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about forks, by JAX and Python
                child = os.fork()
            if not child:
                code = 1
                try:
                    use(server)
                except ServerClosedError as error:
                    code = 7 if "was forked" in str(error) else 2
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        server.submit_nowait((2, None)).result(60)


def test_a_cancelled_exit_closes_the_server_though_all_threads_are_busy():
    async def main():
        go_on = threading.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, go_on.wait, 60)
        server = eb.Server(eb.batch(walk), make_params())

        async def use():
            async with server:
                await server.submit((2, None))

        task = asyncio.ensure_future(use())
        while not server._queue.closed:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server._thread.join(60)
        go_on.set()
        await busy
        return server.is_running

    assert not asyncio.run(main())


def test_nothing_is_submitted_to_a_loop_that_does_not_run():
    with eb.Server(eb.batch(walk), make_params()) as server:
        with pytest.raises(RuntimeError, match="no running event loop"):
            server.submit_in_loop((2, None))
        assert server.stats().submitted == 0
