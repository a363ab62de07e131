"""One training at a time for a file: a lock that ends with its process.

The lock is that of `flock` on a file beside the one that is written, since both the
policy and its checkpoint are replaced. The file is removed while the lock is held;
whoever has opened it before finds by its number that it is gone, and makes another.
What a process that was killed leaves holds nobody up, and the next training removes it.
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
except ImportError:  # Windows, where nobody is kept out
    fcntl = None


@contextmanager
def only_writer(option: str, path: Path | None) -> Iterator[None]:
    """Keeps other trainings from a file, and what stands beside it.

    Where the file system knows no locks, nobody is kept out.

    Args:
        option: The option that names the file.
        path: The file; None where there is none. A device is for all.

    Raises:
        CommandError: Another training writes it.
    """
    if path is None or (path.exists() and not path.is_file()):
        yield
        return
    path = Path(os.path.realpath(path))  # a link is one file with what it leads to
    lock = path.with_name(f".{path.name}.lock")
    try:
        with deferred_interrupt(short=True):
            held = _lock(lock)
            TO_REMOVE.extend([str(lock)] if held is not None else [])
    except BlockingIOError:
        raise CommandError(
            f"{option} names a file that no other training writes but one is writing"
            f" {path} now; wait until it has ended, or name another file"
        ) from None
    try:
        yield
    finally:
        if held is not None:
            # First, as the next file of this name may be another's.
            TO_REMOVE.remove(str(lock))
            with suppress(OSError):
                lock.unlink()
            os.close(held)


def _lock(path: Path) -> int | None:
    """Locks a file that is made if it is missing; returns it, open.

    Raises:
        BlockingIOError: Somebody else holds it.
    """
    if fcntl is None:
        return None
    while True:
        try:
            opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # told by whoever writes the policy
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
    """Whether an open file is still the one of its name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(opened))
    except FileNotFoundError:
        return False
