import gzip
import os
import re
from pathlib import Path

import pytest

from edbatch.data import DataError
from edbatch.data.files import SourceText, expand_paths, read_sources, read_text

SUFFIXES = (".ptb", ".mrg")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ["b.ptb", "a.MRG", "z/c.ptb.gz", "y.ptb/d.mrg", ".git/e.ptb", "f.md"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_a_folder_is_searched_below_and_sorted(folder: Path) -> None:
    found = [str(path.relative_to(folder)) for path in expand_paths(folder, SUFFIXES)]
    assert found == ["a.MRG", "b.ptb", "y.ptb/d.mrg", "z/c.ptb.gz"]


def test_texts_about_the_data_of_a_folder_are_left_out(tmp_path: Path) -> None:
    documents = [
        *("LICENSE.txt", "licence.TXT", "LICENSE-CC-BY.txt", "ORIGIN_readme.txt"),
        *("README.txt.gz", "COPYING.txt", "changelog.txt", "_about.txt", "Notice.txt"),
    ]
    data = ["license.ptb", "noticed.txt", "train.txt", "unlicensed.txt", "we_about.txt"]
    for name in documents + data:
        (tmp_path / name).write_text(name)
    suffixes = (".ptb", ".txt")
    assert [path.name for path in expand_paths(tmp_path, suffixes)] == data
    named = [tmp_path / name for name in documents]
    assert expand_paths(named, suffixes) == named


@pytest.mark.parametrize("name", ["b.ptb.gz", "b.ptb.GZ"])
def test_a_file_beside_itself_gzipped(folder: Path, name: str) -> None:
    (folder / name).write_bytes(gzip.compress(b"b.ptb"))
    with pytest.raises(
        DataError,
        match=rf"b\.ptb: a folder must hold a file once, plain or gzipped; found it "
        rf"together with '{re.escape(name)}'; usually .*; remove one of the two$",
    ):
        expand_paths(folder, SUFFIXES)
    both = [folder / "b.ptb", folder / name]  # naming both reads both
    assert expand_paths(both, SUFFIXES) == both
    (folder / "b.ptb").rename(folder / "z" / "b.ptb")  # in another folder
    assert len(expand_paths(folder, SUFFIXES)) == 5


def test_a_fault_in_a_folder_says_how_to_leave_the_file_out(folder: Path) -> None:
    hint = "; to leave this file out, name the others"
    (folder / "a.MRG").write_bytes(b"\xff")
    for paths, end in ((folder, hint), ([folder / "a.MRG"], "")):
        with pytest.raises(DataError, match=rf"a\.MRG, line 1, .*utf-8`{end}$"):
            list(read_sources(paths, SUFFIXES))
    (folder / "a.MRG").write_bytes(b"")
    with pytest.raises(DataError, match=f"a.MRG: .* fetch it again{hint}$"):
        list(read_sources(folder, SUFFIXES))


@pytest.mark.parametrize("paths", [3, None, [3], [None], b"a", open])
def test_what_is_no_path(paths) -> None:
    with pytest.raises(
        DataError, match=r"takes the path of a file or folder, or several .*; found .*;"
    ):
        expand_paths(paths, SUFFIXES)


def test_a_list_keeps_its_order_and_takes_any_name(folder: Path) -> None:
    paths = (str(folder / "f.md"), folder / "z", folder / "a.MRG")
    found = [path.name for path in expand_paths(iter(paths), SUFFIXES)]
    assert found == ["f.md", "c.ptb.gz", "a.MRG"]
    assert [source.text for source in read_sources(paths[:2], SUFFIXES)] == [
        "f.md",
        "z/c.ptb.gz",
    ]


@pytest.mark.parametrize("name", ["a.ptb", "a.ptb.gz"])
@pytest.mark.parametrize("pack", [gzip.compress, bytes, b"\xef\xbb\xbf".__add__])
def test_gzip_is_told_by_the_content(tmp_path: Path, name: str, pack) -> None:
    (tmp_path / name).write_bytes(pack("dög\r\n".encode()))
    source = read_text(tmp_path / name)
    assert source == SourceText(str(tmp_path / name), "dög\r\n")


def test_positions_count_from_one() -> None:
    source = SourceText("f", "ab\n\ncd")
    positions = [source.position(offset) for offset in range(len(source.text) + 1)]
    assert positions == [(1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (3, 2), (3, 3)]
    assert list(SourceText("f", "a\r\n\x85b\n").lines()) == [
        (1, "a"),
        (2, "\x85b"),
        (3, ""),
    ]


def test_a_missing_path_names_the_nearest(folder: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"b\.ptp: a path to read must exist; found no 'b\.ptp' in the folder "
        rf"'{re.escape(str(folder))}'; usually a misspelt name or another working "
        rf"directory \(it is '{re.escape(os.getcwd())}'\); did you mean 'b\.ptb'\?",
    ):
        expand_paths(folder / "b.ptp", SUFFIXES)


def test_a_missing_path_names_its_first_missing_part(folder: Path) -> None:
    with pytest.raises(
        DataError, match=r"found no 'y\.ptv' in .* did you mean 'y\.ptb'\?"
    ):
        expand_paths([folder / "a.MRG", folder / "y.ptv" / "u" / "d.mrg"], SUFFIXES)


@pytest.mark.parametrize("path", ["qqqqq", "a.MRG/qqqqq"])
def test_a_missing_path_with_nothing_near(folder: Path, path: str) -> None:
    with pytest.raises(
        DataError, match=r"found no 'qqqqq' in .*; pass the path of an ex"
    ):
        expand_paths(folder / path, SUFFIXES)


def test_a_folder_without_matching_files(folder: Path) -> None:
    with pytest.raises(
        DataError,
        match=rf"{re.escape(str(folder))}: a folder must hold files named \*\.conllu, "
        r"\*\.x \(or these with \.gz\); found none; usually the wrong folder .*; name "
        "the files themselves",
    ):
        expand_paths(folder, (".conllu", ".x"))


def test_an_empty_list_of_paths(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"at least one path; found an empty .*glob pattern.*; print"
    ):
        expand_paths(tmp_path.glob("*.ptb"), SUFFIXES)


@pytest.mark.parametrize("data", [b"", gzip.compress(b"", mtime=0)])
def test_an_empty_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(
        DataError,
        match=r"a\.gz: a file must hold some text; found an empty file \(0 bytes\); "
        "usually a download or an unpacking that stopped early; fetch it again",
    ):
        read_text(tmp_path / "a.gz")


WHOLE = gzip.compress(b"(S (NN dog))" * 99)


@pytest.mark.parametrize(
    "data",
    [
        WHOLE[:2],
        WHOLE[:-1],
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:-8] + bytes(8),
        WHOLE[:10] + b"\xff" * 30,
    ],
    ids=["start", "all but the end", "half", "wrong checksum", "damaged"],
)
def test_a_damaged_gzip_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(
        DataError,
        match=rf"a\.gz: a file must be whole .*; found that its {len(data)} bytes of "
        r"gzip do not unpack \(.+\), as after a download that stopped early; fetch it",
    ):
        read_text(tmp_path / "a.gz")


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_bytes_that_are_not_utf8(tmp_path: Path, bom: bytes) -> None:
    (tmp_path / "a.ptb").write_bytes(bom + "(A ä)\n(B ".encode() + b"caf\xe9)")
    with pytest.raises(
        DataError,
        match=r"a\.ptb, line 2, column 7: text must be UTF-8; found the byte 0xe9, "
        r"which is not; usually a file in another encoding; convert it, .*iconv -f",
    ):
        read_text(tmp_path / "a.ptb")


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    with pytest.raises(
        DataError,
        match="z: a file must be readable; found 'Is a directory'; usually missing "
        "access rights; check the path and its rights",
    ):
        read_text(folder / "z")
