"""The folder of lowered programs: JAX's persistent cache folder, if the cache is on.

A file begins with the hash of its content, so that truncated or changed files are
detected; they are removed, and the program is lowered again. Files are written under a
temporary name and renamed, so that other processes see complete files only.
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
# Names of notes about fine and coarse programs contain the tier. While a file is being
# written, eight characters from `tempfile` follow its name.
_FILE = re.compile(
    rf"edbatch-(?:coarse-|fine-)?[0-9a-f]{{64}}{_SUFFIX}(?:[a-z0-9_]{{8}})?"
)

_HASH_BYTES = 32


def is_lowered(name: str) -> bool:
    """Returns whether a file of this name is one that `Folder` writes."""
    return _FILE.fullmatch(name) is not None


class Folder:
    """The folder that a process uses; warns at most once about problems with it.

    Attributes:
        opened: The folder that was opened last; None if there was none.
    """

    def __init__(self) -> None:
        self.opened: Path | None = None
        self._warned = False

    @property
    def path(self) -> Path | None:
        """The folder if JAX's cache is on and uses it; otherwise None."""
        is_on = getattr(jax.config, _IS_ON)
        in_use = getattr(jax.config, FOLDER_OPTION)
        return self.opened if is_on and in_use == str(self.opened) else None

    def read(self, key: str) -> bytes | None:
        """Reads a file.

        Args:
            key: The key under which it was written.

        Returns:
            Its content; None if there is no such file, or it is damaged.
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
        with suppress(OSError):  # marks the use: least recently used files go first
            os.utime(file)
        return found

    def write(self, key: str, content: bytes) -> bool:
        """Writes a file; replaces one of the same name.

        Args:
            key: The key for reading it.
            content: The content.

        Returns:
            Whether it was written.
        """
        if self.path is None:
            return False
        file, temporary = self._file(key), None
        try:
            handle, temporary = tempfile.mkstemp(prefix=file.name, dir=self.path)
            with os.fdopen(handle, "wb") as stream:
                stream.write(hashlib.sha256(content).digest())
                stream.write(content)
            os.replace(temporary, file)
        except FileNotFoundError:  # the folder was removed; JAX warns about it, too
            return False
        except OSError as error:
            if temporary is not None:
                with suppress(OSError):
                    os.unlink(temporary)
            self._warn(f"{file} cannot be written: {error.strerror}")
            return False
        return True

    def remove(self, key: str) -> None:
        """Removes a file if it exists."""
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
                f"programs are lowered again, because {problem}; `edbatch cache"
                " --clear` removes all",
                stacklevel=2,
            )


FOLDER = Folder()
