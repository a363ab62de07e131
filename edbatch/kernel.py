"""Loops of the host: functions that Numba compiles, and keeps for later processes.

Compiled code holds the functions that it calls and the constants that it reads, also
those of other files. Numba, however, compiles a function anew only where the function's
own file has changed: after an update of edbatch, or a ``git pull``, it would go on to
run code that was compiled from old versions of other files. Here a function is compiled
anew where any of the files has changed that its own file imports kernels from, in
several steps, too.
"""

import hashlib
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from numba import njit

# Absolute imports at the beginning of a line, the names in parentheses or not.
_IMPORT = re.compile(rb"^from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)
_NAME = re.compile(rb"\w+")


def kernel(
    function: Callable[..., Any] | None = None,
    *,
    nogil: bool = True,
    inline: Literal["never", "always"] = "never",
    counting: bool = True,
) -> Any:
    """Compiles a function with Numba, as `numba.njit` does, and keeps the result.

    It may call functions and read constants of its own file, and of files that have
    kernels themselves and from which its own one imports in lines that begin with
    ``from``.

    Args:
        function: The function; None to decorate with the other arguments.
        nogil: Whether other threads may run Python meanwhile. To let them costs more
            than it brings where a call takes microseconds.
        inline: As of `numba.njit`.
        counting: Whether compiled code counts references to the arrays of its
            arguments. Where a function has several ways out, Numba cannot tell that the
            counts cancel, so handing it twenty arrays costs forty atomic operations: at
            a few nodes per call, a quarter of a schedule's time. A function that is
            compiled without must not allocate.

    Returns:
        The compiled function; or the decorator.
    """
    # No function is called from C by its address, for which Numba compiles another one.
    options: dict[str, Any] = {
        "cache": True,
        "nogil": nogil,
        "inline": inline,
        "no_cfunc_wrapper": True,
    }

    def decorate(function: Callable[..., Any]) -> Any:
        uncounted: dict[str, Any] = {} if counting else {"_nrt": False}
        try:
            compiled = njit(**options, **uncounted)(function)
        except KeyError:  # Numba tests this option but does not promise it
            compiled = njit(**options)(function)
        _compare_all_files(compiled, function.__module__)
        return compiled

    return decorate if function is None else decorate(function)


def _compare_all_files(compiled: Any, module: str) -> None:
    """Makes Numba's cache of a function depend on all files that it is made from.

    Where Numba keeps no cache, or keeps it in another way, that stays as it is.
    """
    file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(file, "_source_stamp"):
        with suppress(OSError):  # of sources in an archive Numba compares the archive
            file._source_stamp = digest_of_sources(module)


@cache
def digest_of_sources(module: str) -> bytes:
    """Returns the SHA-256 of all files that a module's kernels are compiled from.

    Args:
        module: The name of the module, whose imports have been executed.

    Raises:
        OSError: A file cannot be read.
    """
    digests = [_digest_and_imports(each)[0] for each in files_of_kernels(module)]
    return hashlib.sha256(b"".join(digests)).digest()


def files_of_kernels(module: str) -> list[str]:
    """Lists the modules that a module's kernels are compiled from.

    Args:
        module: As for `digest_of_sources`.

    Returns:
        The module itself, and the modules with kernels that it imports from, in several
        steps, too; in alphabetical order.

    Raises:
        OSError: A file cannot be read.
    """
    found = {module}
    waiting = [module]
    while waiting:
        _, imported = _digest_and_imports(waiting.pop())
        for each in imported:
            if each not in found and _has_kernels(each):
                found.add(each)
                waiting.append(each)
    return sorted(found)


@cache
def _digest_and_imports(module: str) -> tuple[bytes, tuple[str, ...]]:
    """Reads a module's file: its SHA-256, and the modules that it may import from."""
    path = getattr(sys.modules[module], "__file__", None)
    if path is None:  # of a notebook or a console
        return b"", ()
    text = Path(path).read_bytes()
    imported = []
    for source, names in _IMPORT.findall(text):
        imported.append(source.decode())
        imported += [
            f"{source.decode()}.{each.decode()}" for each in _NAME.findall(names)
        ]
    return hashlib.sha256(text).digest(), tuple(imported)


def _has_kernels(module: str) -> bool:
    return getattr(sys.modules.get(module), "kernel", None) is kernel
