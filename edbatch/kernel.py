"""Decorator for host loops that Numba compiles and caches on disk.

Compiled code includes the functions that it calls and the constants that it reads, also
those of other files. Numba, however, recompiles a function only if the function's own
file has changed: after an update of edbatch, or a ``git pull``, it would still run code
compiled from old versions of other files. Here a function is recompiled if any file has
changed from which its own file imports kernels, directly or indirectly.
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

# Absolute imports at the beginning of a line, with or without parentheses.
_IMPORT = re.compile(rb"^from ([\w.]+) import (\([^)]*\)|.*)$", re.MULTILINE)
_NAME = re.compile(rb"\w+")


def kernel(
    function: Callable[..., Any] | None = None,
    *,
    nogil: bool = True,
    inline: Literal["never", "always"] = "never",
    counting: bool = True,
) -> Any:
    """Compiles a function with Numba, as `numba.njit` does, and caches the result.

    The function may call functions and read constants of its own file, and of other
    files that define kernels, if its own file imports from them in lines that begin
    with ``from``.

    Args:
        function: The function; None to decorate with the other arguments.
        nogil: Whether to release the GIL during a call. Where a call takes
            microseconds, releasing it costs more than it gains.
        inline: As for `numba.njit`.
        counting: Whether compiled code counts references to its array arguments. In a
            function with several exits, Numba cannot prove that increments and
            decrements cancel, so passing twenty arrays costs forty atomic operations:
            a quarter of the time of a schedule whose calls process few nodes. A
            function compiled without counting must not allocate.

    Returns:
        The compiled function, or the decorator.
    """
    # No kernel is called from C through its address, so skip the C wrapper that Numba
    # would compile.
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
        except KeyError:  # `_nrt` is an internal option of Numba
            compiled = njit(**options)(function)
        _compare_all_files(compiled, function.__module__)
        return compiled

    return decorate if function is None else decorate(function)


def _compare_all_files(compiled: Any, module: str) -> None:
    """Makes Numba's cache of a function depend on all files it is compiled from.

    Does nothing if Numba keeps no cache, or stores it in another way.
    """
    file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(file, "_source_stamp"):
        with suppress(OSError):  # sources in an archive: Numba compares the archive
            file._source_stamp = digest_of_sources(module)


@cache
def digest_of_sources(module: str) -> bytes:
    """Returns the SHA-256 of all files that a module's kernels are compiled from.

    Args:
        module: The name of the module, which must have executed its imports.

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
        The module itself, and the modules with kernels that it imports from, directly
        or indirectly; in alphabetical order.

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
    """Returns the SHA-256 of a module's file, and the modules it may import from."""
    path = getattr(sys.modules[module], "__file__", None)
    if path is None:  # a notebook or a console
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
