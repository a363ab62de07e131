from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edbatch.data import DataError, WordList, read_word_list
from edbatch.data.files import SourceText
from edbatch.data.word_lists import is_word_list

LETTERS = st.text("abc", max_size=8)


def write(folder: Path, text: str) -> Path:
    file = folder / "dict.txt"
    file.write_bytes(text.encode())
    return file


@given(st.lists(st.text("abc", min_size=2, max_size=5), min_size=1), LETTERS)
def test_every_word_is_found_and_nothing_else(words: list[str], text: str) -> None:
    found = WordList(words).find(text)
    assert found == sorted(
        (first, last, text[first : last + 1])
        for first in range(len(text))
        for last in range(first + 1, len(text))
        if text[first : last + 1] in words
    )


def test_words_that_span_nothing_or_too_much_are_left_out() -> None:
    words = WordList(["a", "ab", "abc", "abcd"], max_length=3)
    assert len(words) == 2 and "abc" in words and "a" not in words
    assert [word for *_, word in words.find("abcd")] == ["ab", "abc"]


@pytest.mark.parametrize(
    "text",
    [
        "new\nyork\n",
        "new 12\nyork 3",
        "new 12 a\r\n\r\nyork 3 n\r\n",
        "new\t12\ta\nyork\t3\tn\nx 1 n\n",
    ],
)
def test_words_with_and_without_counts_and_tags(tmp_path: Path, text: str) -> None:
    words = read_word_list(write(tmp_path, text))
    assert len(words) == 2 and "new" in words and "york" in words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\nnew\n", True),
        ("new 12\n", True),
        ("new 12 a\n", True),
        ("x O\n", False),
        ("x\tB-LOC\n", False),
        ("x0\tO\n", False),
        ("new york 12 a\n", False),
        ("\n \n", False),
    ],
)
def test_a_word_list_is_told_by_its_first_line(text: str, expected: bool) -> None:
    assert is_word_list(SourceText("", text)) is expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "new 1\nnew york 3\n",
            "line 2, column 1: a line of a word list must be a word, its count if any, "
            "and its tag if any; found 'new york 3'; usually a file of another kind, "
            "or a word that holds a space; name a word list, or fix the line",
        ),
        (
            "a 1\nb 2\n",
            "must hold at least one word of two characters; found none in 8",
        ),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        read_word_list(file)
    assert str(caught.value).startswith(str(file))


def test_no_word_is_left() -> None:
    with pytest.raises(DataError, match="hold a word of 2 to 2 characters; found none"):
        WordList(["a", "abc"], max_length=2)


def test_the_published_list(shared_data: Path) -> None:
    words = read_word_list(shared_data / "jieba_dict" / "dict.txt.small")
    assert len(words) == 101049
    found = words.find("\u5317\u4eac\u5927\u5b66")
    assert all(one < two for one, two in pairwise(found))
    assert (0, 1, "\u5317\u4eac") in found and (
        0,
        3,
        "\u5317\u4eac\u5927\u5b66",
    ) in found
