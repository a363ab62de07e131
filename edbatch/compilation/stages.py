"""Compiles a function for a signature, stage by stage, and keeps the record.

JAX keeps what the stages made, so that the next call of the same jitted function with
arguments of this signature finds the program; `tests/compilation` counts that.
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

LONG_S = 1.0  # compilations from here on get a line in the log

log = logging.getLogger("edbatch")

_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_CACHE_MISS = "/jax/compilation_cache/cache_misses"


class _CacheHits(threading.local):
    """Look-ups of this thread in the persistent cache.

    Attributes:
        count: How many programs it found.
        key: The key of the program that it found or wrote last.
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
        jitted: What `jax.jit` returned.
        args: Arguments of the signature, abstract or not, static ones among them.
        kwargs: Those by keyword.
        record: The record, which is filled in.
        at_traced: Is given the trace, as JAX returns it; compilation ends with what it
            raises.
        at_compiler: Is told when XLA's compiler begins, and when it is done.
        at_lowered: Is given the lowered program; compilation ends with what it raises.
        note: The name under which to note that the program is in the persistent cache.

    Raises:
        Exception: What the function or JAX raised; the record keeps it.
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
            hits, _hits.key = _hits.count, None  # not those of what tracing compiled
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
    """The progress line, unless nobody waits: for the background."""
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
