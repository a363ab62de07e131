"""Fixtures shared by the tests of servers."""

import threading
from collections.abc import Iterator

import pytest

import edbatch as eb
from edbatch.compilation.worker import WORKER


@pytest.fixture
def compiler() -> Iterator[threading.Event]:
    """Blocks the background compiler thread until the event is set."""
    go_on, is_there = threading.Event(), threading.Event()

    def hold() -> None:
        is_there.set()
        assert go_on.wait(60)

    held = WORKER.submit(hold)
    assert is_there.wait(60)
    yield go_on
    go_on.set()
    held.wait()
    assert eb.wait_for_compilations(60)  # also those nobody waits for
