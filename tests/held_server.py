"""A server that is blocked until a test releases it."""

import threading

from asking_models import make_params, steps

import edbatch as eb


class HeldServer:
    """A server whose thread blocks in its first request until the test releases it.

    A request is a number of steps, "fail" or "stop", which raise, or "endless".
    """

    def __init__(self, **options):
        self.started, self.go_on = threading.Event(), threading.Event()
        self.params = make_params()
        self.server = eb.Server(eb.batch(self._model), self.params, **options)
        self.first = self.server.submit_nowait("hold")
        assert self.started.wait(60)

    def _model(self, params, count):
        if count == "hold":
            self.started.set()
            self.go_on.wait(60)
            return None
        if count == "stop":
            raise StopIteration
        if count == "fail":
            raise ValueError("told to fail")
        if count == "endless":
            self.started.set()
            count = 10**9
        return steps(params, count)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.go_on.set()
        self.server.close()
