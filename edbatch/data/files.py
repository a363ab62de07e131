"""Finds and reads input files: expands folders and lists, decompresses, decodes UTF-8.

The limits on file sizes are in `edbatch.limits`.
"""

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edbatch.errors import DataError, shown
from edbatch.limits import UnreadableError, read_bytes

# The paths that every reader accepts: a file, a folder, or several of them.
PathLike = str | os.PathLike[str]
Paths = PathLike | Iterable[PathLike]

_UTF8_BOM = b"\xef\xbb\xbf"

# Names of documents about a data set, which are often in the same folder as the data.
_DOCUMENT = re.compile(
    r"(.*[^a-z])?(licen[cs]e|copying|readme|changelog)([^a-z].*)?\.txt"
    r"|[^a-z]*(about|authors|changes|citation|contributing|notice)[^a-z]*\.txt"
)


@dataclass(frozen=True, slots=True)
class SourceText:
    r"""The text of one file, with methods that make errors naming a position in it.

    Attributes:
        name: The path as the user would write it.
        text: The whole text, with the file's line ends.
        in_folder: Whether the file was found in a folder rather than named itself.

    Example:
        >>> print(SourceText("a.ptb", "(S\n(").error(3, "found '('"))
        a.ptb, line 2, column 1: found '('
    """

    name: str
    text: str
    in_folder: bool = False

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yields (1-based line number, line without its end)."""
        # Not splitlines(): it also splits at characters that occur inside words.
        for number, line in enumerate(self.text.split("\n"), start=1):
            yield number, line.removesuffix("\r")

    def position(self, offset: int) -> tuple[int, int]:
        """Returns the 1-based (line, column) of a character offset."""
        line = self.text.count("\n", 0, offset) + 1
        return line, offset - self.text.rfind("\n", 0, offset)

    def error(self, offset: int, message: str) -> DataError:
        """Makes the error for a fault at a character offset."""
        return self.error_at(*self.position(offset), message)

    def error_at(self, line: int, column: int, message: str) -> DataError:
        """Makes the error for a fault at a 1-based line and column."""
        return self.error_in(f", line {line}, column {column}", message)

    def error_in(self, place: str, message: str) -> DataError:
        """Makes the error for a fault at ``place``; empty for the whole file."""
        hint = "; to leave this file out, name the others" if self.in_folder else ""
        return DataError(f"{self.name}{place}: {message}{hint}")

    def error_without(self, instances: str) -> DataError:
        """Makes the error for a file without instances."""
        return self.error_in(
            "",
            f"a file must hold at least one {instances}; found none in "
            f"{len(self.text)} characters; usually a file of blank lines or comments, "
            "or of another format; leave it out or pick the reader of its format",
        )


def read_sources(paths: Paths, suffixes: Sequence[str]) -> Iterator[SourceText]:
    """Reads every file of a path, a folder or a list of them.

    Args:
        paths: A file, a folder, or an iterable of files and folders.
        suffixes: As for `expand_paths`. A file named directly may have any name.

    Yields:
        One `SourceText` per file, in the order given; a folder's files are sorted by
        path.

    Raises:
        DataError: A path is missing; a folder has no such file, or has the same file
            both plain and gzipped; a file is empty, truncated, or not UTF-8.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "a.ptb").write_text("(S (NN dog))")
        ...     [source.text for source in read_sources(folder, (".ptb",))]
        ['(S (NN dog))']
    """
    for path, in_folder in _expanded(paths, suffixes):
        yield read_text(path, in_folder=in_folder)


def expand_paths(paths: Paths, suffixes: Sequence[str]) -> list[Path]:
    """Lists the files of a path, a folder or a list of them.

    Args:
        paths: A file, a folder (searched recursively; names that start with a dot are
            skipped), or an iterable of files and folders.
        suffixes: Suffixes of the files to take from folders, such as
            `(".ptb", ".mrg")`; a further `.gz` is allowed. Documents about the data,
            such as `LICENSE.txt` and `readme.txt`, are skipped.

    Returns:
        The files in the order given; a folder's files are sorted by path.

    Raises:
        DataError: A path is missing; a folder has no such file, or has the same file
            both plain and gzipped; or no path is given.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "b.ptb.gz").write_bytes(b"")
        ...     _ = pathlib.Path(folder, "notes.md").write_bytes(b"")
        ...     [path.name for path in expand_paths(folder, (".ptb",))]
        ['b.ptb.gz']
    """
    return [path for path, _ in _expanded(paths, suffixes)]


def _expanded(paths: Paths, suffixes: Sequence[str]) -> list[tuple[Path, bool]]:
    """Lists the files, each with whether it was found in a folder."""
    files: list[tuple[Path, bool]] = []
    for path in _as_paths(paths):
        if path.is_dir():
            files += ((each, True) for each in _files_in(path, suffixes))
        elif path.exists():
            files.append((path, False))
        else:
            raise _missing(path)
    if not files:
        raise DataError(
            "a reader needs at least one path; found an empty list of them; usually a "
            "glob pattern that matched nothing; print the list and fix the pattern"
        )
    return files


def _as_paths(paths: Paths) -> list[Path]:
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    try:
        return [Path(path) for path in paths]
    except TypeError:
        raise DataError(
            "a reader takes the path of a file or folder, or several of them; found "
            f"{shown(paths)}; usually an open file, or its content; pass its path"
        ) from None


def read_text(path: PathLike, *, in_folder: bool = False) -> SourceText:
    """Reads one file, gzipped or not, as UTF-8.

    Gzip is detected by the first bytes, because the suffix `.gz` of downloads is often
    missing or wrong. A byte order mark is dropped.

    Args:
        path: The file.
        in_folder: Whether the file was found in a folder; for error messages.

    Returns:
        The text, with the name of the file.

    Raises:
        DataError: The file is unreadable, too large, empty, a damaged gzip file, or not
            UTF-8.

    Example:
        >>> import gzip, pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "a.gz")
        ...     _ = file.write_bytes(gzip.compress(b"text"))
        ...     read_text(file).text
        'text'
    """
    empty = SourceText(os.fspath(path), "", in_folder)
    try:
        data = read_bytes(Path(path))
    except UnreadableError as error:
        raise empty.error_in(
            "",
            f"a file must be whole and of a size that can be read; found that {error}",
        ) from error
    except OSError as error:
        raise empty.error_in(
            "",
            f"a file must be readable; found {error.strerror!r}; usually missing "
            "access rights; check the path and its rights",
        ) from error
    if not data:
        raise empty.error_in(
            "",
            "a file must hold some text; found an empty file (0 bytes); usually a "
            "download or an unpacking that stopped early; fetch it again",
        )
    return replace(empty, text=_decode(empty, data.removeprefix(_UTF8_BOM)))


def _files_in(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            plain = name.lower().removesuffix(".gz")
            counts = plain.endswith(tuple(suffixes)) and not _DOCUMENT.fullmatch(plain)
            if counts and not name.startswith("."):
                found.append(Path(parent, name))
    if not found:
        patterns = ", ".join(f"*{suffix}" for suffix in suffixes)
        raise DataError(
            f"{folder}: a folder must hold files named {patterns} (or these with .gz); "
            "found none; usually the wrong folder or other file names; name the files "
            "themselves, any name is read then"
        )
    _check_no_copies(found)
    return sorted(found)


def _check_no_copies(found: Iterable[Path]) -> None:
    """Checks that a folder has no file both plain and gzipped."""
    plain: dict[Path, Path] = {}
    for path in sorted(found):
        unpacked = path.with_suffix("") if path.suffix.lower() == ".gz" else path
        other = plain.setdefault(unpacked, path)
        if other is not path:
            raise DataError(
                f"{other}: a folder must hold a file once, plain or gzipped; found it"
                f" together with {path.name!r}; usually an archive that was kept after"
                " unpacking, whose instances would be read twice; remove one of the two"
            )


def _missing(path: Path) -> DataError:
    """Makes the error for a missing path: its first missing part and a similar name."""
    missing = path
    while missing.parent != missing and not missing.parent.exists():
        missing = missing.parent
    folder = missing.parent
    names = os.listdir(folder) if folder.is_dir() else []
    near = difflib.get_close_matches(missing.name, names, n=1)
    fix = f"did you mean {near[0]!r}?" if near else "pass the path of an existing file"
    return DataError(
        f"{path}: a path to read must exist; found no {missing.name!r} in the folder "
        f"{str(folder)!r}; usually a misspelt name or another working directory "
        f"(it is {os.getcwd()!r}); {fix}"
    )


def _decode(source: SourceText, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        raise replace(source, text=before).error(
            len(before),
            f"text must be UTF-8; found the byte 0x{data[error.start]:02x}, which is "
            "not; usually a file in another encoding; convert it, for example with "
            "`iconv -f latin1 -t utf-8`",
        ) from error
