"""Reports that Numba compiles host loops, which takes long once per installation.

Numba caches compiled code next to the sources, or in the folder that the environment
variable ``NUMBA_CACHE_DIR`` names; later processes read it from there.
"""

import logging
import time
from contextlib import ExitStack

import numba.core.event as numba_event

from edbatch.compilation.progress import progress_line

LONG_S = 1.0  # compilations at least this long are logged
_OWN = "edbatch."

log = logging.getLogger("edbatch")


class HostLoops(numba_event.Listener):
    """Shows a progress line, and logs, while Numba compiles a function of edbatch.

    A function is compiled together with all that it calls. Numba compiles one function
    at a time, under a lock, so the listener needs no lock.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._began = 0.0
        self._line = ExitStack()

    def on_start(self, event: numba_event.Event) -> None:
        """Starts the progress line at the outermost function."""
        self._depth += 1
        if self._depth == 1:
            self._began = time.perf_counter()
            if (name := _name_of(event)) is not None:
                text = f"compiling {name} with Numba, once per installation"
                self._line.enter_context(progress_line(text))

    def on_end(self, event: numba_event.Event) -> None:
        """Ends the progress line, and logs long compilations."""
        self._depth -= 1
        if self._depth > 0:
            return
        self._line.close()
        seconds = time.perf_counter() - self._began
        if seconds >= LONG_S and (name := _name_of(event)) is not None:
            log.info(
                "Numba compiled %s in %.1f s, once per installation: later processes"
                " read it from Numba's cache",
                name,
                seconds,
            )


def _name_of(event: numba_event.Event) -> str | None:
    """Returns the name of the compiled function; None if it is not edbatch's."""
    function = event.data["dispatcher"].py_func
    if not str(function.__module__).startswith(_OWN):
        return None
    return str(function.__qualname__).lstrip("_")


numba_event.register("numba:compile", HostLoops())
