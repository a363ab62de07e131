"""Writing a text file as a whole: readers see the old file or the new one."""

import os
import secrets
from pathlib import Path

from edbatch.schedule.interrupt import deferred_interrupt


def write_whole(path: Path, text: str) -> None:
    """Writes a file beside its place, and then puts it there.

    Args:
        path: The file; replaced if it exists. Of a link the target is replaced.
        text: Its content.

    Raises:
        OSError: It cannot be written; nothing has changed then.
    """
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with deferred_interrupt():
        try:
            with open(beside, "x", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, target)
        finally:
            beside.unlink(missing_ok=True)
