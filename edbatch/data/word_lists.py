"""Word lists, their reader, and the search for their words in a text."""

import re
from collections.abc import Iterable

from edbatch.data.files import Paths, SourceText, read_sources
from edbatch.errors import DataError, shown

SUFFIXES = (".txt", ".dict", ".lst")
MAX_LENGTH = 16

# A word, or a word and its count, or a word, its count and a tag.
_ENTRY = re.compile(r"(\S+)(?:\s+[0-9]+(?:\s+\S+)?)?")


class WordList:
    """A set of words of two or more characters that can be searched for in a text.

    Args:
        words: The words; words of one character are left out.
        max_length: Longer words are left out as well.

    Raises:
        DataError: No word is left.

    Example:
        >>> words = WordList(["new", "newyork", "york", "a"])
        >>> list(words.find("newyork"))
        [(0, 2, 'new'), (0, 6, 'newyork'), (3, 6, 'york')]
    """

    __slots__ = ("_prefixes", "_words")

    def __init__(self, words: Iterable[str], max_length: int = MAX_LENGTH) -> None:
        self._words = frozenset(each for each in words if 1 < len(each) <= max_length)
        if not self._words:
            raise DataError(
                f"a WordList must hold a word of 2 to {max_length} characters; found "
                "none; usually a list of single characters, or a str given for a list "
                "of them; give words that span characters"
            )
        # A trie as the set of its nodes: a search stops at a text that is no prefix.
        self._prefixes = frozenset(
            each[:length] for each in self._words for length in range(2, len(each) + 1)
        )

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Finds every word that occurs in a text, overlaps included.

        Args:
            text: The text.

        Returns:
            For each word the positions of its first and last character, and the word;
            sorted by first character, then by length.
        """
        found = []
        for first in range(len(text)):
            for last in range(first + 1, len(text)):
                word = text[first : last + 1]
                if word not in self._prefixes:
                    break
                if word in self._words:
                    found.append((first, last, word))
        return found

    def __len__(self) -> int:
        return len(self._words)

    def __contains__(self, word: object) -> bool:
        return word in self._words

    def __repr__(self) -> str:
        return f"<WordList of {len(self)} words>"


def read_word_list(path: Paths, *, max_length: int = MAX_LENGTH) -> WordList:
    r"""Reads files with one word per line, optionally with a count or a count and tag.

    Args:
        path: A file, a folder (all its `.txt`, `.dict`, `.lst`, and these with `.gz`,
            recursively), or several of them.
        max_length: Longer words are left out.

    Returns:
        The words of two or more characters.

    Raises:
        DataError: A path is missing; or a file is unreadable, contains no such word, or
            has a line of another form.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "dict.txt")
        ...     _ = file.write_text("new 12 a\nyork 3 n\nx 1 n\n")
        ...     read_word_list(file)
        <WordList of 2 words>
    """
    found = [
        word for source in read_sources(path, SUFFIXES) for word in _entries(source)
    ]
    return WordList(found, max_length)


def is_word_list(source: SourceText) -> bool:
    r"""Distinguishes a word list from a file of tagged characters by its first line.

    Args:
        source: The text of the file.

    Returns:
        Whether the first line that is not blank is a word, or a word and its count, or
        a word, its count and a tag.

    Example:
        >>> [is_word_list(SourceText("", text)) for text in ("the 98 x", "the", "t O")]
        [True, True, False]
    """
    for _, text in source.lines():
        if text.strip():
            return _ENTRY.fullmatch(text.strip()) is not None
    return False


def _entries(source: SourceText) -> list[str]:
    found = []
    for line, text in source.lines():
        if not text.strip():
            continue
        match = _ENTRY.fullmatch(text.strip())
        if match is None:
            raise source.error_at(
                line,
                1,
                "a line of a word list must be a word, its count if any, and its tag "
                f"if any; found {shown(text)}; usually a file of another kind, or a "
                "word that holds a space; name a word list, or fix the line",
            )
        found.append(match[1])
    if not any(len(each) > 1 for each in found):
        raise source.error_without("word of two characters")
    return found
