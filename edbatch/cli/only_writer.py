"""Locks an output file, so that only one training at a time writes it.

The lock is a `flock` on a file next to the output, since the policy and its checkpoint
are themselves replaced. It is released when its process ends. The lock file is removed
while the lock is held; another process that has already opened it notices from its
inode that it is gone, and creates a new one. A lock file left by a killed process
blocks nobody, and the next training removes it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from edbatch.cli.one_sentence import CommandError
from edbatch.ctrl_c import TO_REMOVE
from edbatch.schedule.interrupt import deferred_interrupt

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows, where files are not locked
    fcntl = None


@contextmanager
def only_writer(option: str, path: Path | None) -> Iterator[None]:
    """Prevents other trainings from writing a file and the files next to it.

    Has no effect on file systems without locks.

    Args:
        option: The option that names the file.
        path: The file; None if there is none. Devices are not locked.

    Raises:
        CommandError: Another training is writing the file.
    """
    if path is None or (path.exists() and not path.is_file()):
        yield
        return
    path = Path(os.path.realpath(path))  # a link and its target share one lock
    lock = path.with_name(f".{path.name}.lock")
    try:
        with deferred_interrupt(short=True):
            held = _lock(lock)
            TO_REMOVE.extend([str(lock)] if held is not None else [])
    except BlockingIOError:
        raise CommandError(
            f"{option} must name a file that no other training is writing but one is"
            f" writing {path} now; wait until that training has ended, or name another"
            " file"
        ) from None
    try:
        yield
    finally:
        if held is not None:
            # Before the unlink: a later file of this name may be another process's.
            TO_REMOVE.remove(str(lock))
            with suppress(OSError):
                lock.unlink()
            os.close(held)


def _lock(path: Path) -> int | None:
    """Locks a file, creating it if necessary, and returns its descriptor.

    Raises:
        BlockingIOError: Another process holds the lock.
    """
    if fcntl is None:
        return None
    while True:
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # reported when the policy is written
            return None
        is_held = False
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = _is_at(path, opened)
        except BlockingIOError:
            raise
        except OSError:  # a file system without locks
            path.unlink(missing_ok=True)
            return None
        finally:
            if not is_held:
                os.close(opened)
        if is_held:
            return opened


def _is_at(path: Path, opened: int) -> bool:
    """Whether an open file is still the file at its path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(opened))
    except FileNotFoundError:
        return False
