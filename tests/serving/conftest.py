"""What tests of servers share."""

import threading
from collections.abc import Iterator

import pytest

import edbatch as eb
from edbatch.compilation.worker import WORKER


@pytest.fixture
def compiler() -> Iterator[threading.Event]:
    """Holds the background thread where it is, until it is told to go on."""
    go_on, is_there = threading.Event(), threading.Event()

    def hold() -> None:
        is_there.set()
        assert go_on.wait(60)

    held = WORKER.submit(hold)
    assert is_there.wait(60)
    yield go_on
    go_on.set()
    held.wait()
    assert eb.wait_for_compilations(60)  # also what nobody waits for any more
