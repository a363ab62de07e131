"""Compiled programs take regions of memory, of which a process has few."""

import gc
from pathlib import Path
from typing import Any

import jax
from compile_report import BACKEND_COMPILE

_REGIONS = Path("/proc/self/maps")
_MOST = 20_000  # of 65,530 that Linux lets a process have
_COMPILED = 50  # programs between two looks, most of some twenty regions


class Programs:
    """Counts the programs that the process has compiled or read since it looked."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, name: str, seconds: float, **_: Any) -> None:
        self.count += name == BACKEND_COMPILE


PROGRAMS = Programs()


def drop_programs_if_many() -> None:
    """Drops compiled programs long before there are too many.

    The compile that gets no more regions ends the process.
    """
    if PROGRAMS.count < _COMPILED:
        return
    PROGRAMS.count = 0
    if _REGIONS.exists() and _REGIONS.read_bytes().count(b"\n") > _MOST:
        gc.unfreeze()  # what the programs hold may be in cycles
        jax.clear_caches()
