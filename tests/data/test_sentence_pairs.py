from pathlib import Path

import pytest

from edbatch.data import (
    DataError,
    PairVocabulary,
    SentencePair,
    Vocabulary,
    index_sentence_pair,
    read_sentence_pairs,
)
from edbatch.data.sentence_pairs import END, START, split_words

TOM = "Tom\u5728\u8fd9\u91cc\u3002"  # a name in Latin, three characters, a full stop


def write(folder: Path, text: str) -> Path:
    file = folder / "pairs.tsv"
    file.write_bytes(text.encode())
    return file


@pytest.mark.parametrize(
    "text",
    [
        "good tea\tbon the\n\nyes\toui\n",
        "good  tea \t bon the\tCC-BY\tmore\r\n \nyes\toui\tCC-BY",
    ],
)
def test_two_columns_count(tmp_path: Path, text: str) -> None:
    assert read_sentence_pairs(write(tmp_path, text)) == [
        SentencePair(("good", "tea"), (START, "bon", "the", END)),
        SentencePair(("yes",), (START, "oui", END)),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TOM, ["Tom", *TOM[3:]]),
        ("Tom is here.", ["Tom", "is", "here."]),
        ("\uff21\u3042 b\u3000c\u2028d", ["\uff21", "\u3042", "b", "c", "d"]),
        ("\ud55c\uad6d \uc5b4", ["\ud55c\uad6d", "\uc5b4"]),  # Korean has spaces
    ],
)
def test_scripts_without_spaces_are_split(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_each_side_may_be_split_into_characters(tmp_path: Path) -> None:
    file = write(tmp_path, f"Hi you\t{TOM}\n")
    [pair] = read_sentence_pairs(file, source_tokens="characters")
    assert pair.source == tuple("Hiyou") and len(pair.target) == 2 + 5
    [pair] = read_sentence_pairs(file, target_tokens="characters")
    assert pair.source == ("Hi", "you") and pair.target[1:-1] == tuple(TOM)


def test_each_side_has_its_vocabulary() -> None:
    words = PairVocabulary(Vocabulary(["a", "b"]), Vocabulary([START, "b", END]))
    pair = SentencePair(["b", "x"], [START, "x", "b", END])
    assert index_sentence_pair(pair, words) == SentencePair((2, 0), (1, 0, 2, 3))
    assert len(words) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a\tb\ngood tea\n",
            "line 2, column 1: a line must be a sentence, a tab and its translation; "
            "found 'good tea'; usually a missing translation, or tabs turned into "
            "spaces; restore the tab, or leave the line out",
        ),
        ("a\t\tCC-BY\n", "line 1, column 1: a line must be a sentence, a tab and its"),
        ("\tb\n", "line 1, column 1: a line must be a sentence, a tab and its"),
        ("\n \n", "must hold at least one sentence pair; found none in 3 characters"),
    ],
)
def test_faults_are_named_with_their_place(
    tmp_path: Path, text: str, message: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(DataError, match=message) as caught:
        read_sentence_pairs(file)
    assert str(caught.value).startswith(str(file))


def test_kinds_of_tokens_are_known(tmp_path: Path) -> None:
    message = "tokens must be 'words' or 'characters'; found 'chars'; .* mean 'charac"
    with pytest.raises(DataError, match=message):
        read_sentence_pairs(write(tmp_path, "a\tb"), source_tokens="chars")


@pytest.mark.parametrize(("source", "target"), [([], [1, 2]), ([3], [1])])
def test_a_pair_has_tokens(source: list[int], target: list[int]) -> None:
    with pytest.raises(DataError, match="a SentencePair must have a token in its sou"):
        SentencePair(source, target)


def test_the_published_file_has_the_published_counts(shared_data: Path) -> None:
    pairs = read_sentence_pairs(
        shared_data / "tatoeba_cmn_eng" / "cmn.txt", target_tokens="characters"
    )
    sources = [len(pair.source) for pair in pairs]
    targets = [len(pair.target) - 2 for pair in pairs]
    assert (len(pairs), max(sources), max(targets)) == (26388, 32, 44)
    assert round(sum(sources) / len(pairs), 2) == 6.18
    assert round(sum(targets) / len(pairs), 2) == 9.81  # spaces left out
