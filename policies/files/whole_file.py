"""Writing a file so that a reader sees the old one or the new one, never a part."""

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from edbatch.schedule.interrupt import deferred_interrupt

_LONGEST_SUFFIX = 16  # of those that name a format


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file beside its place, and then puts it there.

    Args:
        path: The file; replaced if it exists. Of a link the target is replaced. What is
            no file but a device or a pipe is written to.
        write: Writes to the path that it is given, whose suffix is that of `path`.

    Raises:
        OSError: It cannot be written, with its name; nothing has changed then.
    """
    target = Path(os.path.realpath(path))
    # As short as the longest name of a file allows, whatever that of the target.
    suffix = target.suffix if len(target.suffix) <= _LONGEST_SUFFIX else ""
    beside = target.parent / f".{secrets.token_hex(4)}.tmp{suffix}"
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            write(path)
        else:
            _write(target, beside, write)
    except OSError as error:
        # Of a full disk Python does not say which file it was.
        if error.errno is None or error.filename not in (None, str(beside)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _write(target: Path, beside: Path, write: Callable[[Path], object]) -> None:
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    with deferred_interrupt(short=True):
        try:
            write(beside)
            with open(beside, "rb") as file:
                os.fsync(file.fileno())
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)
