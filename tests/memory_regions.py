"""Drops compiled programs before a process runs out of memory regions."""

import gc
from pathlib import Path
from typing import Any

import jax
from compile_report import BACKEND_COMPILE

_REGIONS = Path("/proc/self/maps")
_MOST = 20_000  # Linux allows a process 65,530
_COMPILED = 50  # programs between two checks; most have about twenty regions


class Programs:
    """Counts programs compiled or read by this process since the last check."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, name: str, seconds: float, **_: Any) -> None:
        self.count += name == BACKEND_COMPILE


PROGRAMS = Programs()


def drop_programs_if_many() -> None:
    """Drops compiled programs long before the regions run out.

    A compilation that cannot get another region ends the process.
    """
    if PROGRAMS.count < _COMPILED:
        return
    PROGRAMS.count = 0
    if _REGIONS.exists() and _REGIONS.read_bytes().count(b"\n") > _MOST:
        gc.unfreeze()  # objects that programs hold may be in cycles
        jax.clear_caches()
