"""Character lattices and their reader.

A character lattice is a sentence in a script without spaces, together with every word
of a list that occurs in it, as in Zhang and Yang, "Chinese NER Using Lattice LSTM", ACL
2018, figure 1.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from edbatch.data.columns import SUFFIXES as COLUMN_SUFFIXES
from edbatch.data.columns import Row, sentence_rows
from edbatch.data.files import Paths, SourceText, read_sources
from edbatch.data.vocabulary import Vocabulary
from edbatch.data.word_lists import WordList
from edbatch.errors import DataError, shown

SUFFIXES = (*COLUMN_SUFFIXES, ".bmes", ".bioes", ".train", ".dev", ".test")

# One character, or two replacement characters for an emoji that an encoder of 16-bit
# units broke in two; then the character's position in its word, if the file has it.
_CHARACTER = re.compile(r"(\ufffd\ufffd|.)[0-9]*", re.DOTALL)


class LatticeWord(NamedTuple):
    """A word that spans two or more characters.

    Attributes:
        first: Position of its first character, counted from 0.
        last: Position of its last character.
        word: The word, or its index once a vocabulary is applied.

    Example:
        >>> LatticeWord(first=0, last=1, word="北京").word
        '北京'
    """

    first: int
    last: int
    word: str | int


@dataclass(frozen=True, slots=True)
class CharacterLattice:
    """Characters with one tag each, and the words that span two or more of them.

    Attributes:
        characters: [L] The characters, or their indices once a vocabulary is applied;
            any iterable is accepted.
        tags: [L] The tags, or their indices.
        words: [W] The words, in any order.

    Raises:
        DataError: The numbers of tags and characters differ, or a word spans fewer than
            two characters.

    Example:
        >>> lattice = CharacterLattice("abc", "OOO", [LatticeWord(1, 2, "bc")])
        >>> lattice.characters, len(lattice)
        (('a', 'b', 'c'), 3)
        >>> lattice.words_by_first()
        [[], [LatticeWord(first=1, last=2, word='bc')], []]
    """

    characters: tuple[str | int, ...]
    tags: tuple[str | int, ...]
    words: tuple[LatticeWord, ...] = ()

    def __post_init__(self) -> None:
        for name in ("characters", "tags", "words"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.characters) != len(self.tags):
            raise DataError(
                "a CharacterLattice must have one tag per character; found "
                f"{len(self.characters)} characters and {len(self.tags)} tags; usually "
                "the two come from different sentences; give two sequences of one "
                "length"
            )
        for each in self.words:
            if not 0 <= each.first < each.last < len(self.characters):
                raise DataError(
                    "a word of a CharacterLattice must span two characters or more of "
                    f"its {len(self.characters)}; found {shown(each)}; usually places "
                    "that count from 1, or an end behind the word; count from 0, the "
                    "last character included"
                )

    def __len__(self) -> int:
        return len(self.characters)

    def words_by_first(self) -> list[list[LatticeWord]]:
        """Lists, for each character, the words that begin at it."""
        found: list[list[LatticeWord]] = [[] for _ in self.characters]
        for each in self.words:
            found[each.first].append(each)
        return found


def read_character_lattices(
    path: Paths, words: WordList, *, character_column: int = 0, tag_column: int = -1
) -> list[CharacterLattice]:
    r"""Reads lattices from files with one character and its tags per line.

    The format is the one of `read_columns`; tags may be in BIO, BMES or any other
    scheme. The first code point in the character column is the character; a number for
    its position in its word may follow.

    Args:
        path: A file, a folder (all its `.conll`, `.bio`, `.iob`, `.iob2`, `.tsv`,
            `.txt`, `.bmes`, `.bioes`, `.train`, `.dev`, `.test`, and these with `.gz`,
            recursively), or several of them.
        words: The words to look for.
        character_column: Index of the column with the character; negative indices
            count from the last column.
        tag_column: Index of the column with the tag; negative indices count from the
            last column.

    Returns:
        The lattices, in the order of the files; words are sorted by first character,
        then by length.

    Raises:
        DataError: As for `read_columns`; also if a line has more than one character.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "ner.conll")
        ...     _ = file.write_text("a0 B-X\nb1 I-X\nc0 O\n")
        ...     [lattice] = read_character_lattices(file, WordList(["ab", "cd"]))
        >>> lattice.characters, lattice.words
        (('a', 'b', 'c'), (LatticeWord(first=0, last=1, word='ab'),))
    """
    lattices = []
    for source in read_sources(path, SUFFIXES):
        for rows in sentence_rows(source, character_column, tag_column):
            text = "".join(_character(source, row, character_column) for row in rows)
            tags = tuple(row.fields[tag_column] for row in rows)
            found = (LatticeWord(*each) for each in words.find(text))
            lattices.append(CharacterLattice(tuple(text), tags, tuple(found)))
    return lattices


def index_character_lattice(
    lattice: CharacterLattice, words: Vocabulary, tags: Vocabulary
) -> CharacterLattice:
    """Replaces the characters, words and tags of a lattice by their indices.

    Args:
        lattice: A lattice of strings.
        words: The shared vocabulary of characters and words.
        tags: The vocabulary of the tags.

    Returns:
        The lattice of indices.

    Raises:
        DataError: A character, word or tag is not a string.

    Example:
        >>> lattice = CharacterLattice("ab", "OO", [LatticeWord(0, 1, "ab")])
        >>> index_character_lattice(lattice, Vocabulary(["b", "ab"]), Vocabulary("O"))
        ... # doctest: +NORMALIZE_WHITESPACE
        CharacterLattice(characters=(0, 1), tags=(1, 1),
            words=(LatticeWord(first=0, last=1, word=2),))
    """
    return CharacterLattice(
        tuple(words.index(each) for each in lattice.characters),
        tuple(tags.index(each) for each in lattice.tags),
        tuple(each._replace(word=words.index(each.word)) for each in lattice.words),
    )


def _character(source: SourceText, row: Row, column: int) -> str:
    text = row.fields[column]
    if _CHARACTER.fullmatch(text) is None:
        raise source.error_at(
            row.line,
            1,
            "a line must hold one character, with its place in its word behind it if "
            f"any; found {shown(text)}; usually a file of words and tags; read it with "
            "read_columns, or choose character_column",
        )
    return text[0]
