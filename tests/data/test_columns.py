from collections import Counter
from pathlib import Path

import pytest

from edbatch.data import DataError, Sentence, read_columns


def write(folder: Path, text: str) -> Path:
    file = folder / "ner.conll"
    file.write_bytes(text.encode())
    return file


EXPECTED = [
    Sentence(("In", "Oslo"), ("O", "B-LOC")),
    Sentence(("Yes",), ("O",)),
]


@pytest.mark.parametrize(
    "text",
    [
        "In O\nOslo B-LOC\n\nYes O\n",
        "In\tO\nOslo\tB-LOC\n\t\nYes\tO",
        "In   O\r\nOslo  B-LOC \r\n\r\n\r\nYes O\r\n\r\n",
        "-DOCSTART- O\n\nIn O\nOslo B-LOC\n-DOCSTART- -X- O O\nYes O\n",
    ],
)
def test_separators_blank_lines_and_documents(tmp_path: Path, text: str) -> None:
    assert read_columns(write(tmp_path, text)) == EXPECTED


def test_columns_are_chosen(tmp_path: Path) -> None:
    file = write(tmp_path, "1 In IN O\n2 Oslo NNP B-LOC\n")
    [sentence] = read_columns(file, word_column=1)
    assert sentence == EXPECTED[0]
    [sentence] = read_columns(file, word_column=-3, tag_column=2)
    assert sentence == Sentence(("In", "Oslo"), ("IN", "NNP"))


def test_a_token_may_hold_other_spaces_and_a_hash(tmp_path: Path) -> None:
    text = "# O\nno\u00a0break\u2028 O\n\n"
    assert read_columns(write(tmp_path, text))[0].words == ("#", "no\u00a0break\u2028")
    [sentence] = read_columns(write(tmp_path, "New York\tB-LOC\n"))
    assert sentence.words == ("New York",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "In O\nOslo\n",
            "line 2, column 5: a line must have at least 2 columns; found 1 in 'Oslo'; "
            "usually a missing tag, .*; add the tag, or choose word_column",
        ),
        (
            "In O\n\nNew York B-LOC\n",
            "line 3, column 1: every line must have as many columns as the first, line "
            "1, which has 2; found 3 in 'New York B-LOC'; usually a token that holds a "
            "space, .*; separate the columns by tabs, or fix the line",
        ),
        ("In IN O\nOslo B-LOC\n", "line 2, column 1: .* which has 3; found 2 in 'Osl"),
        ("\n\t\n-DOCSTART- O\n", "must hold at least one sentence; found none in 16"),
    ],
)
def test_faults_are_named_with_their_place(
    tmp_path: Path, text: str, message: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        read_columns(file)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("columns", [{"word_column": 2}, {"tag_column": -3}])
def test_a_column_that_is_not_there(tmp_path: Path, columns: dict[str, int]) -> None:
    with pytest.raises(DataError, match="must have at least 3 columns; found 2 in 'In"):
        read_columns(write(tmp_path, "In O\n"), **columns)


@pytest.mark.parametrize(
    ("file", "sentences", "tokens"),
    [
        ("wikigold/wikigold.conll.txt", 1696, 39007),
        ("wnut17/wnut17train.conll", 3394, 62730),
        ("wnut17/emerging.dev.conll", 1009, 15733),
        ("wnut17/emerging.test.annotated", 1287, 23394),
    ],
)
def test_published_files_have_the_published_counts(
    shared_data: Path, file: str, sentences: int, tokens: int
) -> None:
    if not (shared_data / file).exists():
        pytest.skip(f"no {file} in the folder of public data sets")
    found = read_columns(shared_data / file)
    assert (len(found), sum(map(len, found))) == (sentences, tokens)
    tags = Counter(tag for sentence in found for tag in sentence.tags)
    assert tags.most_common(1)[0][0] == "O"
    assert all(str(tag) == "O" or str(tag)[:2] in ("B-", "I-") for tag in tags)
