"""Compiled programs that all processes of a run of the tests find in one folder.

JAX writes a file of its persistent cache in place, so that another process could read
half of it. Here a file gets its name when it is whole.
"""

import os
import shutil
import tempfile
import threading
import time
import zlib
from contextlib import suppress
from pathlib import Path

import jax
import pytest
from jax._src import compilation_cache
from jax._src.lru_cache import LRUCache

# Names the folder to the processes of pytest-xdist, and to later runs where it stays.
VARIABLE = "EDBATCH_TEST_PROGRAMS"
_SUFFIX = "-cache"  # of JAX's files
_PREFIX = "edbatch-programs-"
_KEPT_S = 0.1  # to keep what compiles faster, too, gains nothing
_FORGOTTEN_S = 24 * 3600.0
_put_in_place = LRUCache.put


def compress_fast(executable: bytes) -> bytes:
    """Takes the place of JAX's own, which takes a third of what a write takes."""
    return zlib.compress(executable, level=1)


def put_whole(self: LRUCache, key: str, value: bytes) -> None:
    """Takes the place of `LRUCache.put`, and gives a file its name when it is whole."""
    if self.eviction_enabled or not Path(str(self.path)).is_dir():
        _put_in_place(self, key, value)
        return
    path = Path(str(self.path), key + _SUFFIX)
    if path.exists():
        return
    part = path.with_name(f"{key}.{os.getpid()}.{threading.get_ident()}")
    part.write_bytes(value)
    part.replace(path)


def remove_forgotten(folder: Path) -> None:
    """Removes what runs that were killed have left, to which nobody wrote for a day."""
    for each in folder.glob(_PREFIX + "*"):
        with suppress(OSError):
            if time.time() - each.stat().st_mtime > _FORGOTTEN_S:
                shutil.rmtree(each, ignore_errors=True)


class KeptPrograms:
    """Keeps what XLA compiles: a pytest plugin.

    Many tests compile a program that another one did, and JAX forgets it with the
    function. A cache that the environment names is used in its place.
    """

    def __init__(self) -> None:
        self._made: str | None = None
        if VARIABLE not in os.environ:
            remove_forgotten(Path(tempfile.gettempdir()))
            self._made = tempfile.mkdtemp(prefix=_PREFIX)
            os.environ[VARIABLE] = self._made

    def pytest_sessionstart(self) -> None:
        if jax.config.jax_compilation_cache_dir is not None:
            return
        LRUCache.put = put_whole
        others = ("zstd", "zstandard")  # compress fast as they are
        if not any(getattr(compilation_cache, name, None) for name in others):
            compilation_cache.compress_executable = compress_fast
        jax.config.update("jax_compilation_cache_dir", os.environ[VARIABLE])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _KEPT_S)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if self._made is not None:
            del os.environ[VARIABLE]
            shutil.rmtree(self._made, ignore_errors=True)  # a thread may write yet
