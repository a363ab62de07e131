"""A folder of compiled programs that all processes of a test run share.

JAX writes files of its persistent cache in place, so another process could read half
of one. Here a file is renamed to its final name once it is complete.
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

# Passes the folder to processes of pytest-xdist, and to later runs if it is kept.
VARIABLE = "EDBATCH_TEST_PROGRAMS"
_SUFFIX = "-cache"  # of JAX's files
_PREFIX = "edbatch-programs-"
_KEPT_S = 0.1  # keeping programs that compile faster gains nothing
_FORGOTTEN_S = 24 * 3600.0
_put_in_place = LRUCache.put


def compress_fast(executable: bytes) -> bytes:
    """Replaces JAX's own compression, which takes a third of the time of a write."""
    return zlib.compress(executable, level=1)


def put_whole(self: LRUCache, key: str, value: bytes) -> None:
    """Replaces `LRUCache.put`: renames a file to its final name once it is complete."""
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
    """Removes folders of killed runs that have not been written to for a day."""
    for each in folder.glob(_PREFIX + "*"):
        with suppress(OSError):
            if time.time() - each.stat().st_mtime > _FORGOTTEN_S:
                shutil.rmtree(each, ignore_errors=True)


class KeptPrograms:
    """A pytest plugin that keeps compiled programs.

    Many tests compile a program that another test has compiled, and JAX drops programs
    with their function. If the environment names a cache, that one is used instead.
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
        others = ("zstd", "zstandard")  # these compress fast already
        if not any(getattr(compilation_cache, name, None) for name in others):
            compilation_cache.compress_executable = compress_fast
        jax.config.update("jax_compilation_cache_dir", os.environ[VARIABLE])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _KEPT_S)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        if self._made is not None:
            del os.environ[VARIABLE]
            shutil.rmtree(self._made, ignore_errors=True)  # a thread may still write
