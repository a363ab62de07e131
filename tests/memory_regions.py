"""Compiled programs take regions of memory, of which a process has few."""

import gc
from pathlib import Path

import jax

_REGIONS = Path("/proc/self/maps")


def drop_programs_if_many() -> None:
    """Drops compiled programs long before there are too many.

    Each takes some twenty regions of memory. Linux lets a process have 65,530, and the
    compile that gets no more of them ends the process.
    """
    if _REGIONS.exists() and _REGIONS.read_bytes().count(b"\n") > 15_000:
        gc.unfreeze()  # what the programs hold may be in cycles
        jax.clear_caches()
