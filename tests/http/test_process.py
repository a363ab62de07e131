"""The server process switches threads often, and freezes long-lived objects."""

import gc
import sys
from types import SimpleNamespace

import pytest

from edbatch.errors import ServiceError
from edbatch.http.process import Process, listen


def test_threads_take_turns_often_while_it_serves(monkeypatch):
    found = []

    async def note(self):
        found.append(sys.getswitchinterval())

    monkeypatch.setattr(Process, "_serve", note)
    app = SimpleNamespace(state=SimpleNamespace(endpoints=SimpleNamespace()))
    before = sys.getswitchinterval()
    assert Process(app, None, 1.0).run() == 0
    assert found[0] < 0.001 < before == sys.getswitchinterval()


def test_what_stays_is_frozen_once_it_is_warm(monkeypatch):
    found = []

    async def warm(self):
        app.state.endpoints.on_warm()
        found.append(gc.get_freeze_count())

    monkeypatch.setattr(Process, "_serve", warm)
    app = SimpleNamespace(state=SimpleNamespace(endpoints=SimpleNamespace()))
    gc.unfreeze()
    assert Process(app, None, 1.0).run() == 0
    assert found[0] > 10_000 and gc.get_freeze_count() == 0


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "a" * 70])
def test_a_host_that_is_not_this_machine(host):
    with pytest.raises(ServiceError, match="--host takes a name or an address of this"):
        listen(host, 0)
