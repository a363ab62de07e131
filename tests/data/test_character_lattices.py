from pathlib import Path

import pytest

from edbatch.data import (
    CharacterLattice,
    DataError,
    LatticeWord,
    Vocabulary,
    WordList,
    index_character_lattice,
    read_character_lattices,
    read_word_list,
)

WORDS = WordList(["ab", "abc", "bc", "cd"])


def write(folder: Path, text: str) -> Path:
    file = folder / "ner.conll"
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize(
    "text",
    [
        "a O\nb O\nc B-X\n\nd O\n",
        "a0\tO\nb1\tO\nc10\tB-X\n\nd0\tO",
        "a S O\nb S O\nc S B-X\n\n\nd S O\n",
    ],
)
def test_characters_tags_and_words(tmp_path: Path, text: str) -> None:
    words = (
        LatticeWord(0, 1, "ab"),
        LatticeWord(0, 2, "abc"),
        LatticeWord(1, 2, "bc"),
    )
    assert read_character_lattices(write(tmp_path, text), WORDS) == [
        CharacterLattice(("a", "b", "c"), ("O", "O", "B-X"), words),
        CharacterLattice(("d",), ("O",)),
    ]


def test_digits_and_broken_emoji_are_characters(tmp_path: Path) -> None:
    text = "10 O\n21 O\n\ufffd\ufffd0 O\n\ufffd O\n\U0001f6002 O\n"
    [lattice] = read_character_lattices(write(tmp_path, text), WORDS)
    assert "".join(map(str, lattice.characters)) == "12\ufffd\ufffd\U0001f600"


def test_columns_are_chosen(tmp_path: Path) -> None:
    file = write(tmp_path, "1 a O x\n2 b O x\n")
    [lattice] = read_character_lattices(file, WORDS, character_column=1, tag_column=2)
    assert lattice.characters == ("a", "b") and lattice.tags == ("O", "O")


def test_words_are_listed_by_their_first_character() -> None:
    words = [LatticeWord(1, 3, "x"), LatticeWord(0, 1, "y"), LatticeWord(1, 2, "z")]
    lattice = CharacterLattice("abcd", "OOOO", words)
    named = [
        [each.word for each in beginning] for beginning in lattice.words_by_first()
    ]
    assert named == [["y"], ["x", "z"], [], []]


def test_characters_words_and_tags_are_numbered() -> None:
    lattice = CharacterLattice("abc", "OXO", [LatticeWord(0, 1, "ab")])
    found = index_character_lattice(lattice, Vocabulary(["b", "ab"]), Vocabulary("O"))
    assert found == CharacterLattice((0, 1, 0), (1, 0, 1), (LatticeWord(0, 1, 2),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a O\nOslo B-LOC\n",
            "line 2, column 1: a line must hold one character, with its place in its "
            "word behind it if any; found 'Oslo'; usually a file of words and tags; "
            "read it with read_columns, or choose character_column",
        ),
        ("a O\nb\n", "line 2, column 2: a line must have at least 2 columns"),
        ("a O\n\tO\n", "line 2, column 1: a line must hold one character"),
        ("\n\n", "must hold at least one sentence"),
    ],
)
def test_faults_are_named_with_their_place(
    tmp_path: Path, text: str, message: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        read_character_lattices(file, WORDS)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("span", [(-1, 1), (1, 1), (2, 1), (1, 3)])
def test_a_word_spans_two_characters_or_more(span: tuple[int, int]) -> None:
    with pytest.raises(DataError, match="two characters or more of its 3; found Latti"):
        CharacterLattice("abc", "OOO", [LatticeWord(*span, "x")])


def test_every_character_has_a_tag() -> None:
    with pytest.raises(DataError, match="found 3 characters and 2 tags; usually"):
        CharacterLattice("abc", "OO")


@pytest.mark.parametrize(
    ("split", "sentences", "characters", "words", "most"),
    [
        ("train", 1350, 73778, 19729, 115),
        ("dev", 270, 14509, 3867, 52),
        ("test", 270, 14842, 4100, 111),
    ],
)
def test_published_files_have_the_published_counts(
    shared_data: Path,
    split: str,
    sentences: int,
    characters: int,
    words: int,
    most: int,
) -> None:
    listed = read_word_list(shared_data / "jieba_dict" / "dict.txt.small")
    file = shared_data / "weibo_ner" / f"weiboNER_2nd_conll.{split}"
    found = read_character_lattices(file, listed)
    counts = [len(each.words) for each in found]
    assert (len(found), sum(map(len, found))) == (sentences, characters)
    assert (sum(counts), max(counts)) == (words, most)
    assert all(len(str(each)) == 1 for lattice in found for each in lattice.characters)
