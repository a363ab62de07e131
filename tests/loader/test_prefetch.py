"""`map_ahead`: results in order, work ahead of the consumer, and threads that end."""

import threading
from contextlib import closing

import pytest

from edbatch.loader.prefetch import THREAD_NAME, map_ahead

LIMIT_S = 30


def own_threads():
    return [each for each in threading.enumerate() if THREAD_NAME in each.name]


@pytest.mark.parametrize("ahead", [0, 1, 2, 50])
@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_tasks(ahead, threads):
    def work(k):
        threading.Event().wait(0.01 * (k % 3 == 0))  # later tasks may finish first
        return k * k

    assert list(map_ahead(work, range(9), ahead, threads)) == [k * k for k in range(9)]
    assert not own_threads()


def test_work_goes_on_while_the_consumer_does_not_ask():
    begun = [threading.Event() for _ in range(10)]
    items = map_ahead(lambda k: begun[k].set(), range(10), ahead=2)
    with closing(items):
        next(items)
        assert begun[1].wait(LIMIT_S) and begun[2].wait(LIMIT_S)
        assert not begun[3].wait(0.05)  # no further ahead than requested


def test_without_work_ahead_there_are_no_threads():
    assert list(map_ahead(lambda _: threading.current_thread(), [1], ahead=0)) == [
        threading.main_thread()
    ]


def test_an_exception_arrives_in_its_place():
    def work(k):
        return 1 // (3 - k)

    items = map_ahead(work, range(10), ahead=4, threads=2)
    assert [next(items) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(items)
    assert not own_threads()
    assert next(items, "ended") == "ended"


def test_an_exception_of_the_tasks_ends_the_threads():
    def tasks():
        yield 1
        raise ValueError("no more tasks")

    with pytest.raises(ValueError, match="no more tasks"):
        list(map_ahead(abs, tasks(), ahead=3))
    assert not own_threads()


def test_a_loop_that_is_left_ends_its_threads():
    for _ in map_ahead(abs, range(10), ahead=2, threads=3):
        assert own_threads()
        break
    assert not own_threads()


def test_no_task():
    assert list(map_ahead(abs, [], ahead=2)) == []
