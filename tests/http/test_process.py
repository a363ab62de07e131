"""The process of a server hands Python's lock over often, and spares its collector."""

import gc
import sys
from types import SimpleNamespace

from edbatch.http.process import Process


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
