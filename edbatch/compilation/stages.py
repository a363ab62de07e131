"""Traces, lowers and compiles a function for a signature, and records the times.

JAX caches the result of each stage, so the next call of the same jitted function with
arguments of this signature finds the program; `tests/compilation` verifies that.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

from edbatch.compilation import host_loops  # noqa: F401  # listens from now on
from edbatch.compilation.cache_key import cache_key_at
from edbatch.compilation.kept_fine import write_note
from edbatch.compilation.progress import progress_line
from edbatch.compilation.record import Compilation

LONG_S = 1.0  # compilations at least this long are logged

log = logging.getLogger("edbatch")

_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_CACHE_MISS = "/jax/compilation_cache/cache_misses"


class _CacheHits(threading.local):
    """This thread's lookups in the persistent cache.

    Attributes:
        count: Number of cache hits.
        key: The key of the last program that was read or written.
    """

    def __init__(self) -> None:
        self.count = 0
        self.key: str | None = None


_hits = _CacheHits()


def _count_hit(event: str, **_: Any) -> None:
    if event == _CACHE_HIT:
        _hits.count += 1
    if event in (_CACHE_HIT, _CACHE_MISS):
        _hits.key = cache_key_at(sys._getframe(1))


jax.monitoring.register_event_listener(_count_hit)


def compile_stages(
    jitted: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    record: Compilation,
    *,
    at_traced: Callable[[Any], None] = lambda _: None,
    at_compiler: Callable[[bool], None] = lambda _: None,
    at_lowered: Callable[[Any], None] = lambda _: None,
    note: str | None = None,
) -> None:
    """Traces, lowers and compiles a jitted function.

    Args:
        jitted: The result of `jax.jit`.
        args: Positional arguments of the signature, abstract or concrete, including
            static ones.
        kwargs: Keyword arguments, likewise.
        record: The record, which is filled in.
        at_traced: Called with the trace, as JAX returns it; an exception aborts the
            compilation.
        at_compiler: Called with True before XLA compiles, and with False once it has
            succeeded.
        at_lowered: Called with the lowered program; an exception aborts the
            compilation.
        note: Name of the note which records that the program is in the persistent
            cache; None for no note.

    Raises:
        Exception: Raised by the function or JAX; the record keeps its text.
    """
    record.state, record.started = "running", time.time()
    try:
        with _shown(record):
            clock = time.perf_counter()
            traced = jitted.trace(*args, **kwargs)
            record.trace_s = time.perf_counter() - clock
            checked = time.perf_counter()
            at_traced(traced)
            clock += time.perf_counter() - checked
            lowered = traced.lower()
            record.lower_s = time.perf_counter() - clock - record.trace_s
            at_lowered(lowered)
            at_compiler(True)
            hits, _hits.key = _hits.count, None  # ignore compilations during tracing
            lowered.compile()
            at_compiler(False)
            record.compile_s = (
                time.perf_counter() - clock - record.trace_s - record.lower_s
            )
    except BaseException as error:
        record.state, record.error = "failed", f"{type(error).__name__}: {error}"
        raise
    record.from_cache = _hits.count > hits
    if note is not None and _hits.key is not None:
        write_note(note, lowered, _hits.key)
    record.state = "finished"
    if record.seconds >= LONG_S:
        _log_long(record)


def _shown(record: Compilation) -> AbstractContextManager[None]:
    """Progress line on the terminal; none for background compilations."""
    if record.background:
        return nullcontext()
    return progress_line(f"compiling {record.function} ({record.tier})")


def _log_long(record: Compilation) -> None:
    log.info(
        "compiled %s (%s program%s) in %.1f s: trace %.1f, lower %.1f, %s %.1f; %s",
        record.function,
        record.tier,
        ", in the background" if record.background else "",
        record.seconds,
        record.trace_s,
        record.lower_s,
        "read from the cache" if record.from_cache else "XLA",
        record.compile_s,
        record.reason,
    )
