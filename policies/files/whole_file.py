"""Atomic file writes: a reader sees the old file or the new one, never a part."""

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from edbatch.schedule.interrupt import deferred_interrupt

_LONGEST_SUFFIX = 16  # longer suffixes do not name a format


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a temporary file in the same folder, then renames it to `path`.

    Args:
        path: The file; replaced if it exists. If it is a link, its target is replaced.
            A device or a pipe is written to directly.
        write: Writes to the path that it is called with, which has the suffix of
            `path`.

    Raises:
        OSError: The file cannot be written; the error names it, and nothing has
            changed.
    """
    target = Path(os.path.realpath(path))
    # A short name, because the target's own may be as long as file names can be.
    suffix = target.suffix if len(target.suffix) <= _LONGEST_SUFFIX else ""
    temporary = target.parent / f".{secrets.token_hex(4)}.tmp{suffix}"
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            write(path)
        else:
            _write(target, temporary, write)
    except OSError as error:
        # If the disk is full, Python's error does not name the file.
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write(target: Path, temporary: Path, write: Callable[[Path], object]) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    with deferred_interrupt(short=True):
        try:
            write(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
