"""JAX's persistent cache of compiled programs, in the user's cache folder.

JAX looks a program up by its StableHLO, the compiler options, the device and JAX's
version, and reads it instead of compiling it. An entry that cannot be read or written
causes a warning, and the program is compiled.

Gain (`experiments/first_gradient.py --cache FOLDER`, docs/results.md): a second process
has its first gradient after 0.55 s instead of 0.91 for tree-lstm, and after 2.0 s
instead of 4.6 for a network of 17 types. The fine programs follow 1.2 and 2.2 s later.
"""

import math
import os
import re
import stat
import sys
import tempfile
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from edbatch.arguments import as_path, check_number
from edbatch.compilation.cache_key import (
    KERNEL_CACHES_OPTION,
    cache_key_at,
    entry_of,
    has_device_plugin,
    is_last_use,
    is_program,
    last_use_of,
)
from edbatch.errors import EdbatchError
from edbatch.stored_programs.folder import FOLDER, FOLDER_OPTION, is_lowered

FOLDER_VARIABLE = "EDBATCH_CACHE_DIR"
OFF = "off"  # value of the variable that turns the cache off

MAX_BYTES = 2 * 2**30
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:/")  # "gs://bucket" is "gs:/bucket" as a path


def default_cache_folder() -> Path | None:
    """Returns the default folder of compiled programs.

    Returns:
        The folder in the environment variable ``EDBATCH_CACHE_DIR``; if it is not set,
        ``edbatch/programs`` in the user's cache folder: ``$XDG_CACHE_HOME`` or
        ``~/.cache``, on macOS ``~/Library/Caches``, on Windows ``%LOCALAPPDATA%``. None
        if the variable is ``off``, or the user has no home.

    Example:
        >>> import os
        >>> from unittest import mock
        >>> with mock.patch.dict(os.environ, {"EDBATCH_CACHE_DIR": "off"}):
        ...     print(default_cache_folder())
        None
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return None if named == OFF else Path(named)
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if sys.platform == "darwin":
        base = home / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    else:
        own = os.environ.get("XDG_CACHE_HOME", "")
        base = Path(own) if os.path.isabs(own) else home / ".cache"
    return base / "edbatch" / "programs"


def use_compilation_cache(
    folder: str | os.PathLike[str] | None = None, *, max_bytes: int = MAX_BYTES
) -> Path | None:
    """Keeps compiled programs in a folder, for later processes.

    It sets options of JAX for the whole process, so it also applies to functions
    outside of edbatch: ``jax_compilation_cache_dir``, and thresholds so that JAX keeps
    programs however quickly they compile. edbatch's commands call it; libraries and
    scripts have to call it themselves.

    Anyone who can write to the folder can run code in this process, so the folder must
    belong to the user.

    Args:
        folder: The folder, which is created; by default that of the environment
            variable ``EDBATCH_CACHE_DIR``, or ``edbatch/programs`` in the user's cache
            folder.
        max_bytes: Most bytes that the programs in it may take; the least recently used
            are removed, now and in later calls.

    Returns:
        The folder's path; None if there is no cache: the variable is ``off``, the user
        has no home, or the folder cannot be written, which causes a warning.

    Raises:
        EdbatchError: `folder` is not a path, or `max_bytes` not a number of bytes.

    Example:
        >>> import edbatch as eb
        >>> eb.use_compilation_cache(3)
        Traceback (most recent call last):
        edbatch.errors.EdbatchError: the folder of compiled programs is the path of ...
    """
    what = "the folder of compiled programs"
    check_number(EdbatchError, "max_bytes", max_bytes, 0, whole=True)
    path = (
        default_cache_folder()
        if folder is None
        else as_path(EdbatchError, what, folder)
    )
    if path is None:
        return None
    if (problem := open_cache(path, max_bytes)) is not None:
        warnings.warn(problem, stacklevel=2)
        return None
    return path


def open_cache(folder: Path, max_bytes: int = MAX_BYTES) -> str | None:
    """Like `use_compilation_cache`, for checked arguments and without a warning.

    Args:
        folder: The folder.
        max_bytes: Most bytes that the programs in it may take.

    Returns:
        A sentence that says why the folder cannot be used; None if it is now in use.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print(open_cache(Path(folder) / "programs"))
        None
    """
    if (problem := _write_problem(folder)) is not None:
        return (
            "programs are compiled again in each process, because the folder of"
            f" compiled programs, {folder}, cannot be written: {problem}; name another"
            f" by {FOLDER_VARIABLE} or in eb.use_compilation_cache(folder)"
        )
    _remove_oldest(folder, max_bytes)
    before = getattr(jax.config, FOLDER_OPTION)
    jax.config.update(FOLDER_OPTION, str(folder))
    FOLDER.opened = folder
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if not has_device_plugin():
        # Keys of JAX 0.10, not of 0.12, contain the path of the GPU kernel caches, a
        # compiler option: no program would be found in a moved folder.
        jax.config.update(KERNEL_CACHES_OPTION, "none")
    if before != str(folder):
        compilation_cache.reset_cache()  # JAX opens the folder only once
    _warn_once_of_bad_entries()
    return None


@dataclass(frozen=True)
class CacheContents:
    """Contents of a folder of compiled programs.

    Attributes:
        folder: The folder.
        programs: Number of compiled programs.
        files: Number of files: compiled and lowered programs, edbatch's notes about
            compiled programs, and JAX's notes of their last use.
        size_bytes: Total size of the files.

    Example:
        >>> from pathlib import Path
        >>> CacheContents(Path("programs"), programs=3, files=5, size_bytes=4096).files
        5
    """

    folder: Path
    programs: int
    files: int
    size_bytes: int


def cache_contents(folder: Path) -> CacheContents:
    """Counts the programs and files in a folder of compiled programs.

    Args:
        folder: The folder; it need not exist.

    Returns:
        The counts.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cache_contents(Path(folder)).programs
        0
    """
    return _counted(folder, _entries(folder))


def clear_compilation_cache(folder: Path) -> CacheContents:
    """Removes the programs in a folder, and no other files.

    Files are recognized by their complete names, which contain a hash. Links are kept.

    Args:
        folder: The folder; it need not exist.

    Returns:
        Counts of the removed programs and files.

    Raises:
        EdbatchError: A file cannot be removed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     clear_compilation_cache(Path(folder)).programs
        0
    """
    removed = []
    for each in _entries(folder):
        entry = each[2]
        try:
            entry.unlink()
        except FileNotFoundError:  # another process was first
            continue
        except OSError as error:
            raise EdbatchError(
                f"a compiled program is a file that its owner can remove but {entry}"
                f" cannot be: {error.strerror}; usually it is another user's; name"
                f" your own folder by {FOLDER_VARIABLE}"
            ) from error
        removed.append(each)
    return _counted(folder, removed)


_Entry = tuple[float, int, Path]  # time of a file's last use, its bytes, and its path


def _counted(folder: Path, entries: list[_Entry]) -> CacheContents:
    programs = sum(is_program(entry.name) for _, _, entry in entries)
    size_bytes = sum(size for _, size, _ in entries)
    return CacheContents(folder, programs, len(entries), size_bytes)


def _entries(folder: Path) -> list[_Entry]:
    """Returns the files that JAX and edbatch write, least recently used first.

    JAX's notes of last uses come last, so that they are removed last: JAX reads the
    note of each program that it finds.
    """
    found = []
    for name in _names(folder):
        is_note = is_last_use(name)
        if not (is_note or is_program(name) or is_lowered(name)):
            continue
        try:
            status = (folder / name).lstat()
        except OSError:  # another process removed it
            continue
        if not stat.S_ISREG(status.st_mode):  # folders and links belong to the user
            continue
        used = max(status.st_atime, status.st_mtime)
        found.append((math.inf if is_note else used, status.st_size, folder / name))
    return sorted(found)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # there is none, or it cannot be read
        return []


def _remove_oldest(folder: Path, max_bytes: int) -> None:
    entries = _entries(folder)
    total = sum(size for _, size, _ in entries)
    for _, size, entry in entries:
        if total <= max_bytes:
            return
        try:
            entry.unlink(missing_ok=True)
            if is_program(entry.name):
                last_use_of(entry).unlink(missing_ok=True)
        except OSError:
            continue
        total -= size


def _write_problem(folder: Path) -> str | None:
    """Returns why a folder cannot be written; None if it can. Creates the folder."""
    if _ADDRESS.match(str(folder)):
        return "it is a URL, and only local folders are supported"
    if (link := broken_link(folder)) is not None:
        return f"{link} is a link that leads nowhere"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return error.strerror or str(error)


def broken_link(folder: Path) -> Path | None:
    """Returns a broken or circular link on a folder's path; None if there is none."""
    # `os.path`'s functions return False if access is denied; `Path`'s may raise.
    is_link, leads = os.path.islink, os.path.exists
    on_the_way = (folder, *folder.parents)
    return next(
        (each for each in on_the_way if is_link(each) and not leads(each)), None
    )


class _BadEntries:
    """Warning filter that replaces all of JAX's cache warnings by one of edbatch's.

    JAX never overwrites an entry, so an unreadable entry is removed: the program that
    is then compiled takes its place.
    """

    def __init__(self) -> None:
        self._warned = False

    def match(self, text: str) -> bool:
        """Returns whether a warning is about an entry; warns about the first one."""
        if not text.startswith(_JAX_WARNINGS):
            return False
        if text.startswith(_READING):
            _remove(cache_key_at(sys._getframe(1)))
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"programs of the persistent cache cannot be used ({text}), so they are"
                " compiled and written again; `edbatch cache --clear` removes all",
                stacklevel=2,
            )
        return True


def _remove(key: str | None) -> None:
    entry = None if key is None else entry_of(key)
    if entry is None:
        return
    with suppress(OSError):  # another process was first, or it is another user's
        entry.unlink()


_READING = "Error reading persistent compilation cache entry"
_JAX_WARNINGS = (_READING, "Error writing persistent compilation cache entry")
_BAD_ENTRIES = _BadEntries()


def _warn_once_of_bad_entries() -> None:
    filters: Any = warnings.filters
    if not any(each[1] is _BAD_ENTRIES for each in filters):
        filters.insert(0, ("ignore", _BAD_ENTRIES, UserWarning, None, 0))
