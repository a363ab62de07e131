import gzip
import os
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edbatch import limits
from edbatch.limits import UnreadableError, check_archive, parse_json, read_bytes


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("size", [0, 1, 2**24, 2**24 + 1])
def test_files_are_read_whole(tmp_path: Path, pack: Any, size: int) -> None:
    data = np.random.default_rng(0).bytes(size)
    (tmp_path / "a").write_bytes(pack(data))
    assert read_bytes(tmp_path / "a") == data


def test_several_members_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(b"a") * 1000 + bytes(7))
    assert read_bytes(tmp_path / "a") == b"a" * 1000


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_may_have_so_many_bytes(tmp_path: Path, pack: Any) -> None:
    (tmp_path / "a").write_bytes(pack(b"a" * 100))
    assert len(read_bytes(tmp_path / "a", max_bytes=100)) == 100
    with pytest.raises(UnreadableError, match="more than"):
        read_bytes(tmp_path / "a", max_bytes=99)


def test_a_pipe_without_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    def write() -> None:
        with open(tmp_path / "pipe", "wb") as pipe:
            try:
                while True:
                    pipe.write(b"a" * 1000)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(
        UnreadableError,
        match="it holds more than the 1,000,000 bytes that a file may have; divide it",
    ):
        read_bytes(tmp_path / "pipe", max_bytes=10**6)
    writer.join()


def test_how_far_a_file_may_unpack(tmp_path: Path) -> None:
    whole = gzip.compress(bytes(limits.FREE_BYTES))
    (tmp_path / "a").write_bytes(whole)
    assert len(read_bytes(tmp_path / "a")) == limits.FREE_BYTES
    (tmp_path / "a").write_bytes(gzip.compress(bytes(limits.FREE_BYTES + 1)))
    with pytest.raises(UnreadableError, match="gzip unpack to more than 1,048,576, wh"):
        read_bytes(tmp_path / "a")
    # Two million bytes are at most a hundred times 20 kB.
    noise = np.random.default_rng(0).bytes(20_000)
    (tmp_path / "a").write_bytes(gzip.compress(noise + bytes(1_980_000)))
    assert len(read_bytes(tmp_path / "a")) == 2_000_000


def test_a_name_that_no_file_has() -> None:
    with pytest.raises(UnreadableError, match="its name holds a null character; write"):
        read_bytes(Path("a\0b"))


def write_archive(file: Path, size: int) -> None:
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w") as member,
    ):
        for _ in range(size // 1024):
            member.write(bytes(1024))


def test_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FREE_ARRAY_BYTES", 100_000)
    write_archive(tmp_path / "a.npz", 102_400)
    check_archive(tmp_path / "a.npz")
    write_archive(tmp_path / "a.npz", 1_024_000)
    with pytest.raises(
        UnreadableError,
        match=r"its 1,\d+ bytes unpack to 1,024,000, more than the 2\d\d,\d+ that an "
        "archive of that size may hold; save the arrays again, not compressed",
    ):
        check_archive(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"PK")
    with pytest.raises(
        UnreadableError, match=r"it is not an archive \(File is not a zip"
    ):
        check_archive(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "^it is nested too deeply$"),
        ("9" * 5000, r"^Exceeds the limit \(4300 digits\) .* has 5000 digits$"),
    ],
)
def test_json_beyond_a_limit(text: str, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        parse_json(text)
    with pytest.raises(ValueError, match="Expecting value"):
        parse_json("[1,")
