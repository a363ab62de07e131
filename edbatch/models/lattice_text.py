"""Character lattices from files of tagged characters and a word list."""

from pathlib import Path

from edbatch.data import (
    CharacterLattice,
    DataError,
    read_character_lattices,
    read_word_list,
)
from edbatch.data.character_lattices import SUFFIXES
from edbatch.data.files import PathLike, Paths, expand_paths, read_text
from edbatch.data.word_lists import is_word_list


def read_lattices(path: Paths, words: PathLike | None = None) -> list[CharacterLattice]:
    r"""Reads lattices from files of tagged characters and a word list.

    Args:
        path: Files or folders. Unless `words` is given one file or more of them is a
            word list, which is told by its first line: a word alone, or a word, its
            count and nothing else but a tag.
        words: The word list.

    Returns:
        The lattices, all still strings.

    Raises:
        DataError: A file is missing or malformed, or there is no word list or no file
            of characters.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     text, words = (pathlib.Path(folder, each) for each in ("a", "b"))
        ...     _ = text.write_text("a B-X\nb I-X\nc O\n")
        ...     _ = words.write_text("ab 3 n\n")
        ...     [lattice] = read_lattices([text, words])
        >>> lattice.words
        (LatticeWord(first=0, last=1, word='ab'),)
    """
    files = expand_paths(path, SUFFIXES)
    if words is not None:
        return read_character_lattices(files, read_word_list(words))
    lists = [file for file in files if is_word_list(read_text(file))]
    text = [file for file in files if file not in lists]
    if not lists:
        raise DataError(
            "lattices need a word list beside the files of characters; found none "
            f"among {_names(files)}; usually its path was left out; name a file with a "
            "word per line, its count and tag behind it if any"
        )
    if not text:
        raise DataError(
            "lattices need a file of characters and tags beside the word list; found "
            f"word lists only, {_names(lists)}; usually its path was left out, or its "
            "tags are missing; name a file with a character and its tag per line"
        )
    return read_character_lattices(text, read_word_list(lists))


def _names(files: list[Path]) -> str:
    return ", ".join(map(str, files))
