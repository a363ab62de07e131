"""Files that commands write: checked before the work."""

import os
from pathlib import Path
from tempfile import TemporaryFile

from edbatch.cli.one_sentence import CommandError


def check_writable(option: str, path: Path | None) -> None:
    """Checks before long work that its result can be written.

    Args:
        option: The option that names the file.
        path: The file; None where there is none.

    Raises:
        CommandError: Its folder is missing or cannot be written, or it is a folder.
    """
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise CommandError(
            f"{option} names a file in an existing folder but {folder} does not exist;"
            " make it, or name another"
        )
    if path.is_dir():
        raise CommandError(
            f"{option} names a file but {path} is a folder; add a file name"
        )
    if not os.access(folder, os.W_OK):
        raise CommandError(
            f"{option} names a file in a writable folder but {folder} cannot be"
            " written; name another"
        )
    if path.exists() and not path.is_file():
        return  # a pipe, or a terminal
    try:  # the permissions do not tell of a full disk, or of a folder like /proc
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(
            f"{option} names a file in a writable folder but none can be made in"
            f" {folder} ({error.strerror}); name another"
        ) from error


def make_folder(option: str, folder: Path) -> None:
    """Makes a folder to write to, and those above it, unless they exist.

    Raises:
        CommandError: It cannot be made, or a file has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"{option} names a folder but {folder} cannot be made ({error.strerror});"
            " name another"
        ) from error
