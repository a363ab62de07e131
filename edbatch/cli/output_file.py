"""Checks the output files of commands before long work starts."""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryFile

from edbatch.cli.one_sentence import CommandError

# Suffixes of files that commands write and that no reader reads from a folder.
_NO_DATA = (".csv", ".npz", ".png", ".pdf", ".svg", ".checkpoint")
_OWN_JSON = b'{\n"format": "edbatch-'  # first bytes of files of policies and costs
_Input = str | Path | Iterable[Path] | None


def check_writable(option: str, path: Path | None) -> None:
    """Checks before long work that an output file can be written.

    Args:
        option: The option that names the file.
        path: The file; None if there is none.

    Raises:
        CommandError: The folder of the file is missing or not writable, or the path is
            a folder.
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
    if path.exists() and not path.is_file():
        return  # a pipe, or a terminal
    if not os.access(folder, os.W_OK):
        raise CommandError(
            f"{option} names a file in a writable folder but {folder} cannot be"
            " written; name another"
        )
    try:  # permissions do not reveal a full disk, or a folder like /proc
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CommandError(
            f"{option} names a file in a writable folder but none can be made in"
            f" {folder} ({error.strerror}); name another"
        ) from error


def check_distinct(
    outputs: Mapping[str, Path | None], inputs: Mapping[str, _Input]
) -> None:
    """Checks before long work that no output overwrites another file of the command.

    Devices, pipes and names of policies never conflict.

    Args:
        outputs: The file that each option writes; None if there is none.
        inputs: The input of each option: a file, a folder, several, or None.

    Raises:
        CommandError: Two outputs are the same file, or an output is an input or would
            replace a file that is read from an input folder.
    """
    written = {
        option: path
        for option, path in outputs.items()
        if path is not None and (path.is_file() or not path.exists())
    }
    for (one, path), (other, its) in combinations(written.items(), 2):
        if is_same(path, its):
            raise CommandError(
                f"{one} and {other} name the same file, {path}; give each its own"
            )
    for option, read in inputs.items():
        for source in _paths(read):
            for one, path in written.items():
                if path.exists() and _is_read_from(source, path):
                    raise CommandError(
                        f"{one} names a file to write but {option} reads {path};"
                        " name another file"
                    )


def _paths(read: _Input) -> Iterator[Path]:
    from edbatch.policies.registry import is_policy_name

    if isinstance(read, str):
        if not is_policy_name(read):
            yield Path(read)
    elif isinstance(read, Path):
        yield read
    elif read is not None:
        yield from read


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths name the same file, which need not exist."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _is_read_from(source: Path, path: Path) -> bool:
    """Whether an existing file is an input, or is read from an input folder."""
    if not source.is_dir():
        return is_same(source, path)
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(source))
    return inside and _may_be_data(path)


def _may_be_data(path: Path) -> bool:
    """Whether a reader may read a file of a folder; edbatch's own files are skipped."""
    if path.name.startswith(".") or path.suffix.lower() in _NO_DATA:
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_OWN_JSON)) != _OWN_JSON
    except OSError:  # unreadable, so its content is unknown
        return True


def make_folder(option: str, folder: Path) -> None:
    """Creates a folder to write to, and its parents, unless they exist.

    Args:
        option: The option that names the folder.
        folder: The folder.

    Raises:
        CommandError: The folder cannot be created, or a file has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"{option} names a folder but {folder} cannot be made ({error.strerror});"
            " name another"
        ) from error
