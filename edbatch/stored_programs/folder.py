"""The folder of lowered programs: that of JAX's persistent cache, where it is on.

A file holds the hash of the rest, so that one that was cut off or changed is found; it
is removed, and the program is lowered again. Files are written beside their place and
moved there, so that another process sees a whole file or none.
"""

import hashlib
import os
import re
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path

import jax

FOLDER_OPTION = "jax_compilation_cache_dir"
_IS_ON = "jax_enable_compilation_cache"
_SUFFIX = "-stablehlo"
# Notes of fine and coarse programs name their tier. Of a file that is being written,
# eight characters of `tempfile` stand behind the name.
_FILE = re.compile(
    rf"edbatch-(?:coarse-|fine-)?[0-9a-f]{{64}}{_SUFFIX}(?:[a-z0-9_]{{8}})?"
)

_HASH_BYTES = 32


def is_lowered(name: str) -> bool:
    """Tells whether a file of this name is one that `Folder` writes."""
    return _FILE.fullmatch(name) is not None


class Folder:
    """The folder that a process uses, and whether it warned of it.

    Attributes:
        opened: The folder that was opened last; None if there was none.
    """

    def __init__(self) -> None:
        self.opened: Path | None = None
        self._warned = False

    @property
    def path(self) -> Path | None:
        """The folder, if it is that of JAX's cache and the cache is on; else None."""
        is_on = getattr(jax.config, _IS_ON)
        in_use = getattr(jax.config, FOLDER_OPTION)
        return self.opened if is_on and in_use == str(self.opened) else None

    def read(self, key: str) -> bytes | None:
        """Reads a file.

        Args:
            key: The key that it was written under.

        Returns:
            What was written; None if there is no such file, or it is damaged.
        """
        if self.path is None:
            return None
        file = self._file(key)
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"{file} cannot be read: {error.strerror}")
            return None
        own, found = content[:_HASH_BYTES], content[_HASH_BYTES:]
        if hashlib.sha256(found).digest() != own:
            self._warn(f"{file} is damaged")
            self.remove(key)
            return None
        with suppress(OSError):  # what is used is kept for longest
            os.utime(file)
        return found

    def write(self, key: str, content: bytes) -> bool:
        """Writes a file, in place of one of its name.

        Args:
            key: The key to read it by.
            content: What to write.

        Returns:
            Whether it was written.
        """
        if self.path is None:
            return False
        file, beside = self._file(key), None
        try:
            handle, beside = tempfile.mkstemp(prefix=file.name, dir=self.path)
            with os.fdopen(handle, "wb") as stream:
                stream.write(hashlib.sha256(content).digest())
                stream.write(content)
            os.replace(beside, file)
        except FileNotFoundError:  # somebody removed the folder; JAX warns of it, too
            return False
        except OSError as error:
            if beside is not None:
                with suppress(OSError):
                    os.unlink(beside)
            self._warn(f"{file} cannot be written: {error.strerror}")
            return False
        return True

    def remove(self, key: str) -> None:
        """Removes a file, if it is there."""
        if self.path is not None:
            with suppress(OSError):
                self._file(key).unlink()

    def _file(self, key: str) -> Path:
        assert self.path is not None, "a folder is used"
        return self.path / f"edbatch-{key}{_SUFFIX}"

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"lowered programs are made again, because {problem};"
                " `edbatch cache --clear` removes all",
                stacklevel=2,
            )


FOLDER = Folder()
