"""Ctrl-C during compiled code, and during code that must not be interrupted."""

import gc
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from edbatch.policies import AgendaRemaining, BeamSearch, BestOfHeuristics, Greedy
from edbatch.policies.files import whole_file
from edbatch.policies.files.whole_file import write_whole
from edbatch.schedule.examples import tree
from edbatch.schedule.interrupt import (
    deferred_interrupt,
    is_ctrl_c,
    keyboard_interrupts,
)


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


@contextmanager
def handling(handler):
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_of_the_main_thread() -> None:
    """In other threads, user code has raised it."""
    assert is_ctrl_c(KeyboardInterrupt()) and not is_ctrl_c(ValueError())
    found = []
    thread = threading.Thread(
        target=lambda: found.append(is_ctrl_c(KeyboardInterrupt()))
    )
    thread.start()
    thread.join()
    assert found == [False]


def test_the_end_of_the_block_is_a_safe_moment() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        press_ctrl_c()
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_acts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        press_ctrl_c()
        press_ctrl_c()
        pytest.fail("the second was deferred as well")


def test_a_second_ctrl_c_waits_for_the_end_of_a_short_block() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        with deferred_interrupt(short=True):
            with deferred_interrupt(short=True):
                press_ctrl_c()
                press_ctrl_c()
                steps.append("inner")
            steps.append("outer")
        pytest.fail("the second was deferred as well")
    assert steps == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_first_ctrl_c_in_a_short_block_is_left_to_the_one_around_it() -> None:
    with pytest.raises(KeyboardInterrupt), deferred_interrupt() as check:
        with deferred_interrupt(short=True):
            press_ctrl_c()
        check()


def test_what_a_check_raised_is_over() -> None:
    with deferred_interrupt() as check:
        press_ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            check()
        check()


def test_a_block_within_another_leaves_ctrl_c_to_the_outer_one() -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        with deferred_interrupt() as check:
            press_ctrl_c()
            with pytest.raises(KeyboardInterrupt):
                check()
            press_ctrl_c()
        steps.append("inner")
    assert steps == ["inner"]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_the_handler_of_others_decides(handler) -> None:
    with handling(handler):
        with deferred_interrupt() as check:
            press_ctrl_c()
            if handler is signal.SIG_IGN:
                check()
        assert signal.getsignal(signal.SIGINT) is handler


def test_other_threads_defer_nothing() -> None:
    found = []

    def run() -> None:
        with deferred_interrupt() as check:
            found.append(signal.getsignal(signal.SIGINT))
            check()

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]


def test_files_are_written_whole(tmp_path, monkeypatch) -> None:
    file = tmp_path / "a.txt"

    def write(path) -> None:
        press_ctrl_c()
        path.write_text("al")
        press_ctrl_c()
        path.write_text("all")

    with pytest.raises(KeyboardInterrupt):
        write_whole(file, write)
    assert file.read_text() == "all"

    sync = whole_file.os.fsync
    monkeypatch.setattr(
        whole_file.os, "fsync", lambda number: (press_ctrl_c(), sync(number))
    )
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, lambda path: path.write_text("new"))
    assert file.read_text() == "new"
    assert [*tmp_path.iterdir()] == [file]


def test_other_system_errors_stay() -> None:
    with pytest.raises(SystemError, match="broken"), keyboard_interrupts():
        raise SystemError("broken")


@pytest.mark.parametrize(
    "policy",
    [
        Greedy(),
        AgendaRemaining(),
        BestOfHeuristics(Greedy()),
        BeamSearch(Greedy(), width=4),
    ],
)
def test_ctrl_c_in_compiled_code_is_a_keyboard_interrupt(policy) -> None:
    # Without special handling, most of these would be a SystemError from Numba.
    graph = tree("(((a)b)c((a)c)b)d")  # none of its schedules reaches the bound
    policy.schedule(graph)  # compiles
    gc.disable()  # garbage collector callbacks would swallow it
    before = signal.signal(signal.SIGALRM, lambda *_: press_ctrl_c())
    try:
        for k in range(200):
            end = time.monotonic() + 10
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + 1e-6 * k)
                while True:  # Python 3.13 can lose it at other conditions
                    policy.schedule(graph)
                    if time.monotonic() > end:
                        raise TimeoutError
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.enable()
