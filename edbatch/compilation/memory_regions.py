"""Room for compiled programs: a process has only so many regions of memory.

XLA's CPU compiler puts each kernel of a program into three regions of its own, so that
the gradient of a model of 17 types takes 1,700. Linux gives a process 65,530
(``vm.max_map_count``), and LLVM ends a process that gets no more. So before a new
signature is compiled, all programs are dropped if the regions run short; those that are
called again are compiled again, or read from the cache.
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
_SHARE = 0.6  # of the limit; one program may take a twentieth


class HasPrograms(Protocol):
    """A function that keeps compiled programs."""

    def clear_cache(self) -> None:
        """Drops all of them."""


_FUNCTIONS: "weakref.WeakSet[HasPrograms]" = weakref.WeakSet()


def register(function: HasPrograms) -> None:
    """Notes a function whose programs may be dropped, for as long as it exists."""
    _FUNCTIONS.add(function)


def make_room(name: str, programs: int) -> None:
    """Drops all compiled programs if the process is about to have too many regions.

    Args:
        name: The function that is to be compiled, for the warning.
        programs: For how many signatures it has programs.
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
