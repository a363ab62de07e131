"""The process of a server hands Python's lock over often."""

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
