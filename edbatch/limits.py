"""Size limits on files, so that a wrong file fails early and with a clear message.

Data, policy and parameter files are read or checked by these functions. The limits are
far above the sizes of real files: treebanks and lattices unpack from gzip to 6 to 8
times their size, the questions of CLEVR to 17 times.
"""

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_BYTES = 2**32  # of a text file, compressed or not
MAX_EXPANSION = 100  # limit of uncompressed size over compressed size ...
FREE_BYTES = 2**20  # ... unless the uncompressed size is at most this
FREE_ARRAY_BYTES = 2**30  # likewise for arrays, which may be all zero
MAX_NESTING = 250_000  # of brackets that are read without recursion
MAX_DIGITS = 18  # of whole numbers, so that they fit int64

_GZIP_MAGIC = b"\x1f\x8b"
_PIECE = 2**24


class UnreadableError(ValueError):
    """A file exceeds a limit or is damaged; the message is a clause that says how."""


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Reads a file, decompressed if it begins with the magic bytes of gzip.

    Args:
        path: The file; one without a size, such as a pipe, is read up to the limit.
        max_bytes: Limit on its size, both compressed and uncompressed.

    Returns:
        Its content.

    Raises:
        OSError: The file cannot be read.
        UnreadableError: The file or its uncompressed content is too large, the gzip
            data is damaged, or the path contains a null character.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "a.gz")
        ...     _ = file.write_bytes(gzip.compress(b"text"))
        ...     read_bytes(file)
        b'text'
    """
    if "\0" in str(path):
        raise UnreadableError("its name holds a null character; write another path")
    with open(path, "rb", buffering=0) as file:
        raw = _at_most(file.read, max_bytes)
    if raw is None:
        raise UnreadableError(
            f"it holds more than the {max_bytes:,} bytes that a file may have; divide"
            " it into several files"
        )
    return _unpacked(raw, max_bytes) if raw.startswith(_GZIP_MAGIC) else raw


def _unpacked(raw: bytes, max_bytes: int) -> bytes:
    most = min(max_bytes, max(FREE_BYTES, MAX_EXPANSION * len(raw)))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            data = _at_most(file.read, most)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UnreadableError(
            f"its {len(raw):,} bytes of gzip do not unpack ({error}), as"
            " after a download that stopped early; fetch it again"
        ) from error
    if data is None:
        raise UnreadableError(
            f"its {len(raw):,} bytes of gzip unpack to more than {most:,}, which text"
            " does not; unpack it first if it is what you want to read"
        )
    return data


def _at_most(read: Callable[[int], bytes], most: int) -> bytes | None:
    """Reads to the end; returns None if there are more than `most` bytes."""
    pieces, size = [], 0
    while piece := read(min(_PIECE, most + 1 - size)):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            return None
    return b"".join(pieces)


def check_archive(path: Path) -> None:
    """Checks that the arrays of an `.npz` file do not unpack to more than the limits.

    Args:
        path: The file.

    Raises:
        OSError: The file cannot be read.
        UnreadableError: The file is not an archive, or unpacks to too much.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError) as error:
        raise UnreadableError(f"it is not an archive ({error})") from error
    packed = sum(each.compress_size for each in members)
    size = sum(each.file_size for each in members)
    most = FREE_ARRAY_BYTES + MAX_EXPANSION * packed
    if size > most:
        raise UnreadableError(
            f"its {packed:,} bytes unpack to {size:,}, more than the {most:,} that an"
            " archive of that size may hold; save the arrays again, not compressed"
        )


def parse_json(text: str, **options: Any) -> Any:
    """Parses JSON.

    Args:
        text: The text.
        **options: As for `json.loads`.

    Returns:
        The value.

    Raises:
        json.JSONDecodeError: The text is not JSON.
        UnreadableError: The text is nested too deeply, has a number with too many
            digits, or a function in `options` raised `ValueError`.

    Example:
        >>> parse_json("[" * 100_000)
        Traceback (most recent call last):
            ...
        edbatch.limits.UnreadableError: it is nested too deeply
    """
    try:
        return json.loads(text, **options)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise UnreadableError("it is nested too deeply") from None
    except ValueError as error:
        clause, _, _ = str(error).partition(";")  # Python's own advice follows
        raise UnreadableError(clause) from None
