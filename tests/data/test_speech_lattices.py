import gzip
import pickle
from pathlib import Path

import pytest

from edbatch.data import (
    Arc,
    DataError,
    SpeechLattice,
    Vocabulary,
    index_speech_lattice,
    read_plf,
)

LINE = "((('tea', -0.5, 1), ('a', -1, 2),), (('two', 0, 1),),)"
LATTICE = SpeechLattice(
    [Arc(0, 1, "tea", -0.5), Arc(0, 2, "a", -1.0), Arc(1, 2, "two", 0.0)]
)


def write(folder: Path, text: str) -> Path:
    file = folder / "a.plf"
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize(
    "text",
    [
        LINE,
        LINE.replace(" ", "") + "\n",
        f"\n()\n{LINE}\n \n",
        f"  {LINE}\r\n()\r\n",
        LINE.replace("'", '"'),
    ],
)
def test_lattices_and_what_is_left_out(tmp_path: Path, text: str) -> None:
    assert read_plf(write(tmp_path, text)) == [LATTICE]


def test_lines_end_at_a_line_feed_alone(tmp_path: Path) -> None:
    text = "((('no\u2028w', 0, 1),),)\n" + LINE.replace("tea", "it\\'s")
    one, two = read_plf(write(tmp_path, text))
    assert one.arcs[0].word == "no\u2028w" and two.arcs[0].word == "it's"


def test_a_backslash_stays(tmp_path: Path) -> None:
    [lattice] = read_plf(write(tmp_path, LINE.replace("tea", r"te\d")))
    assert lattice.arcs[0].word == r"te\d"


def test_a_folder_of_lattices(tmp_path: Path) -> None:
    (tmp_path / "b.plf.gz").write_bytes(gzip.compress(LINE.encode()))
    (tmp_path / "LICENSE").write_text("none")
    assert read_plf(tmp_path) == [LATTICE]


def test_incoming_arcs() -> None:
    assert LATTICE.num_nodes == 3
    words = [[arc.word for arc in arcs] for arcs in LATTICE.incoming()]
    assert words == [[], ["tea"], ["a", "two"]]
    assert pickle.loads(pickle.dumps(LATTICE)) == LATTICE


def test_words_are_numbered() -> None:
    found = index_speech_lattice(LATTICE, Vocabulary(["two", "a"]))
    assert [arc.word for arc in found.arcs] == [0, 2, 1]
    assert [arc[:2] for arc in found.arcs] == [arc[:2] for arc in LATTICE.arcs]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "((('tea', -0.5, 1),)",
            r"column \d+: a line must be a lattice in PLF, tuples of \(word, score, "
            r"distance\); found .\(\(\('tea', -0.5, 1\),\)., which is no "
            "Python literal; usually a line that was cut, .*; fix the line, or leave",
        ),
        ("(((open('x'), 0, 1),),)", "which is no Python literal"),
        ("(" * 5000, "which is no Python literal"),
        ("'tea'", "a lattice must be a tuple of nodes; found 'tea'; usually a comma"),
        ("(1, 2)", "a node must be a tuple of arcs; found 1; usually a comma that is"),
        (
            "(('tea', 0, 1),)",
            r"an arc must be \(word, score, distance\), its score finite; found 'tea'; "
            r"usually a comma that is missing behind a single .*; write \(\(\('w",
        ),
        ("((('tea', 0),),)", r"an arc must be .*; found \('tea', 0\)"),
        ("(((3, 0, 1),),)", r"an arc must be .*; found \(3, 0, 1\)"),
        ("((('a', '0', 1),),)", r"an arc must be .*; found \('a', '0', 1\)"),
        ("((('a', 0, 1.0),),)", r"an arc must be .*; found \('a', 0, 1.0\)"),
        ("((('a', 0, True),),)", r"an arc must be .*; found \('a', 0, True\)"),
        (
            "((('a', 1e999, 1),),)",
            r"an arc .*, its score finite; found \('a', inf, 1\)",
        ),
        (f"((('a', {10**400}, 1),),)", r"an arc must be .*; found \('a', 1000"),
        ("((('a', 0, 0),),)", r"must lead to a later node; found Arc\(source=0, tar"),
        ("((('a', 0, 1),),(('a', 0, -1),),)", "must lead to a later node"),
        (
            "((('a', 0, 2),),)",
            "every node but the first must have an incoming arc; found none for node 1",
        ),
    ],
)
def test_faults_are_named_with_their_line(
    tmp_path: Path, line: str, message: str
) -> None:
    file = write(tmp_path, f"{LINE}\n()\n{line}\n")
    with pytest.raises(DataError, match=message) as caught:
        read_plf(file)
    assert str(caught.value).startswith(f"{file}, line 3, column ")


@pytest.mark.parametrize("text", ["()\n\n()\n", "\n", "((),)\n"])
def test_a_file_without_lattices(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match="must hold at least one lattice; found none"):
        read_plf(write(tmp_path, text))


def test_a_lattice_has_an_arc() -> None:
    with pytest.raises(DataError, match="a SpeechLattice must have an arc; found none"):
        SpeechLattice([])


def test_the_published_file_has_the_published_counts(shared_data: Path) -> None:
    folder = shared_data / "fisher_callhome_lattices" / "plf"
    found = read_plf(folder / "fisher_dev.es")
    assert len(found) == 3979 - 16
    assert sum(each.num_nodes for each in found) == 91792
    assert sum(len(each.arcs) for each in found) == 122139
    assert max(each.num_nodes for each in found) == 186
    assert len({arc.word for each in found for arc in each.arcs}) == 6641
