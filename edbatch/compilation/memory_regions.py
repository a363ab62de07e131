"""Drops compiled programs before the process runs out of memory regions.

XLA's CPU compiler puts each kernel of a program into three memory regions, so the
gradient of a model with 17 types takes 1,700. Linux allows a process 65,530
(``vm.max_map_count``), and LLVM aborts the process when it gets no more. So if regions
run short before a new signature is compiled, all programs are dropped. Those that are
called again are recompiled, or read from the cache.
"""

import gc
import logging
import weakref
from pathlib import Path
from typing import Protocol

import jax

log = logging.getLogger("edbatch")

_REGIONS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")
_SHARE = 0.6  # of the limit; one program may take up to a twentieth of the limit


class HasPrograms(Protocol):
    """A function that keeps compiled programs."""

    def clear_cache(self) -> None:
        """Drops all compiled programs."""


_FUNCTIONS: "weakref.WeakSet[HasPrograms]" = weakref.WeakSet()


def register(function: HasPrograms) -> None:
    """Registers a function whose programs may be dropped, by a weak reference."""
    _FUNCTIONS.add(function)


def make_room(name: str, programs: int) -> None:
    """Drops all compiled programs if the process is running out of memory regions.

    Args:
        name: Name of the function to be compiled, for the warning.
        programs: Number of signatures for which that function has programs.
    """
    taken, limit = _count_regions(), _limit()
    if taken <= _SHARE * limit:
        return
    for function in list(_FUNCTIONS):
        function.clear_cache()
    gc.collect()
    if _count_regions() > _SHARE * limit:
        jax.clear_caches()
        gc.collect()
    log.warning(
        "compiled programs took %d of the %d regions of memory that this process may"
        " have, so all of them were dropped, and are compiled again when they are"
        " called; %s has programs for %d signatures: give plans of minibatches of"
        " different sizes one number of rows, batched.plan(..., pad_to=N), keep"
        " programs by eb.use_compilation_cache(), or raise vm.max_map_count",
        taken,
        limit,
        name,
        programs,
    )


def _count_regions() -> int:
    try:
        return _REGIONS.read_bytes().count(b"\n")
    except OSError:  # not on Linux
        return 0


def _limit() -> int:
    try:
        return int(_LIMIT.read_text())
    except (OSError, ValueError):
        return 65_530
