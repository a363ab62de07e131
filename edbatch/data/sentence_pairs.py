"""Pairs of source and target sentences, and their reader for tab-separated files."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from edbatch.data.files import Paths, SourceText, read_sources
from edbatch.data.vocabulary import Vocabulary
from edbatch.errors import DataError, nearest, shown

SUFFIXES = (".tsv", ".txt", ".tab")
START = "<s>"
END = "</s>"

# Scripts written without spaces: Han and kana, with punctuation and full-width forms.
_UNSPACED = (
    "\u2e80-\u2fdf\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff00-\uffef"
)
_WORD = re.compile(f"[{_UNSPACED}]|[^\\s{_UNSPACED}]+")


def split_words(text: str) -> list[str]:
    """Splits a text at white space, and around every Chinese or Japanese character.

    Args:
        text: The text.

    Returns:
        The tokens. Punctuation stays with the preceding word unless it follows a space
        or is full-width.

    Example:
        >>> split_words("Tom is here."), len(split_words("\u6211\u611bTom\u3002"))
        (['Tom', 'is', 'here.'], 4)
    """
    return _WORD.findall(text)


def split_characters(text: str) -> list[str]:
    """Splits a text into its characters, without white space.

    Example:
        >>> split_characters("a bc")
        ['a', 'b', 'c']
    """
    return [character for character in text if not character.isspace()]


TOKENS: dict[str, Callable[[str], list[str]]] = {
    "words": split_words,
    "characters": split_characters,
}


@dataclass(frozen=True, slots=True)
class SentencePair:
    """A sentence and its translation.

    Attributes:
        source: [S] The tokens of the source, or their indices once a vocabulary is
            applied; any iterable is accepted.
        target: [T] The tokens of the target, or their indices; the first is `START` and
            the last is `END`.

    Raises:
        DataError: The source is empty, or the target has fewer than two tokens.

    Example:
        >>> SentencePair(["tea"], [START, "th\u00e9", END]).source
        ('tea',)
    """

    source: tuple[str | int, ...]
    target: tuple[str | int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", tuple(self.source))
        object.__setattr__(self, "target", tuple(self.target))
        if not self.source or len(self.target) < 2:
            raise DataError(
                "a SentencePair must have a token in its source, and a start and an "
                f"end in its target; found {len(self.source)} and {len(self.target)} "
                "tokens; usually an empty sentence, or a target without its marks; "
                f"put {START!r} before the target and {END!r} behind it"
            )


@dataclass(frozen=True, slots=True)
class PairVocabulary:
    """The vocabularies of the two languages of sentence pairs.

    Attributes:
        source: The tokens of the sources.
        target: The tokens of the targets, including the start and end marks.

    Example:
        >>> both = PairVocabulary(Vocabulary(["a"]), Vocabulary(["x", "y"]))
        >>> len(both)
        3
    """

    source: Vocabulary
    target: Vocabulary

    def __len__(self) -> int:
        """The size of the larger vocabulary."""
        return max(len(self.source), len(self.target))


def read_sentence_pairs(
    path: Paths, *, source_tokens: str = "words", target_tokens: str = "words"
) -> list[SentencePair]:
    r"""Reads files with a sentence, a tab and its translation on each line.

    Further columns, such as an attribution, are ignored. Blank lines are skipped.

    Args:
        path: A file, a folder (all its `.tsv`, `.txt`, `.tab`, and these with `.gz`,
            recursively), or several of them.
        source_tokens: Tokens of the source: ``"words"`` (see `split_words`) or
            ``"characters"`` (see `split_characters`).
        target_tokens: Tokens of the target, as for ``source_tokens``.

    Returns:
        The pairs, in the order of the files; targets begin with `START` and end with
        `END`.

    Raises:
        DataError: A path is missing; the kind of tokens is unknown; or a file is
            unreadable, contains no pair, or has a line without two sentences.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "pairs.tsv")
        ...     _ = file.write_text("good tea\tbon the\tCC-BY\n")
        ...     read_sentence_pairs(file)
        [SentencePair(source=('good', 'tea'), target=('<s>', 'bon', 'the', '</s>'))]
    """
    split_source, split_target = _splitter(source_tokens), _splitter(target_tokens)
    pairs: list[SentencePair] = []
    for source in read_sources(path, SUFFIXES):
        before = len(pairs)
        for line, text in source.lines():
            if text.strip():
                one, two = _columns(source, line, text)
                target = (START, *split_target(two), END)
                pairs.append(SentencePair(tuple(split_source(one)), target))
        if len(pairs) == before:
            raise source.error_without("sentence pair")
    return pairs


def index_sentence_pair(pair: SentencePair, words: PairVocabulary) -> SentencePair:
    """Replaces the tokens of a pair by their indices.

    Args:
        pair: A pair of strings.
        words: The vocabularies of the two languages.

    Returns:
        The pair of indices.

    Raises:
        DataError: A token is not a string.

    Example:
        >>> pair = SentencePair(["a"], [START, "x", END])
        >>> words = PairVocabulary(Vocabulary(pair.source), Vocabulary(pair.target))
        >>> index_sentence_pair(pair, words)
        SentencePair(source=(1,), target=(1, 2, 3))
    """
    return SentencePair(
        tuple(words.source.index(each) for each in pair.source),
        tuple(words.target.index(each) for each in pair.target),
    )


def _columns(source: SourceText, line: int, text: str) -> tuple[str, str]:
    columns = text.split("\t")
    if len(columns) < 2 or not columns[0].strip() or not columns[1].strip():
        raise source.error_at(
            line,
            1,
            "a line must be a sentence, a tab and its translation; found "
            f"{shown(text)}; usually a missing translation, or tabs turned into "
            "spaces; restore the tab, or leave the line out",
        )
    return columns[0], columns[1]


def _splitter(tokens: str) -> Callable[[str], list[str]]:
    if tokens not in TOKENS:
        raise DataError(
            f"tokens must be 'words' or 'characters'; found {shown(tokens)}; usually a "
            f"misspelling; {nearest(str(tokens), TOKENS)}"
        )
    return TOKENS[tokens]
