"""Writing a file so that a reader sees the old one or the new one, never a part."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from edbatch.schedule.interrupt import deferred_interrupt


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Writes a file beside its place, and then puts it there.

    Args:
        path: The file; replaced if it exists. Of a link the target is replaced. What is
            no file but a device or a pipe is written to.
        write: Writes to the path that it is given, whose name ends like that of `path`.

    Raises:
        OSError: It cannot be written; nothing has changed then.
    """
    target = Path(os.path.realpath(path))
    if target.is_char_device() or target.is_fifo():
        write(target)
        return
    beside = target.with_name(f".{secrets.token_hex(4)}.tmp.{target.name}")
    with deferred_interrupt(short=True):
        try:
            write(beside)
            with open(beside, "rb") as file:
                os.fsync(file.fileno())
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)
