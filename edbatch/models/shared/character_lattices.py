"""Workloads over character lattices: reads their files, runs cells along a lattice."""

import os
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from edbatch.data import (
    CharacterLattice,
    LabelledVocabulary,
    index_character_lattice,
    read_character_lattices,
    read_word_list,
    sample_character_lattices,
)
from edbatch.data.character_lattices import SUFFIXES
from edbatch.data.files import PathLike, Paths, expand_paths, read_text
from edbatch.data.word_lists import is_word_list
from edbatch.errors import DataError, WorkloadError
from edbatch.models.shared.tagged_text import tags_of
from edbatch.models.shared.workload import Workload


def over_character_lattices(
    name: str,
    unit: str,
    model: Callable[[Any, CharacterLattice], Any],
    init_params: Callable[..., Any],
    vocabulary_size: int,
    num_tags: int,
    words: PathLike | None,
) -> Workload:
    """Builds a workload over character lattices.

    Args:
        name: The workload's name.
        unit: Name of the recurrent unit, for the description.
        model: The tagger.
        init_params: ``init_params(key, hidden, vocabulary_size=, num_tags=)``.
        vocabulary_size: Number of characters and words together.
        num_tags: Number of tags.
        words: Path of the word list; None if the list is among the files to read.

    Returns:
        The workload.

    Raises:
        WorkloadError: ``words`` is not a path.
    """
    if words is not None and not isinstance(words, str | os.PathLike):
        raise WorkloadError(
            f"option 'words' of {name!r} is the path of a word list but this is"
            f" {words!r}; leave it out where the list is among the files to read"
        )

    def number(
        lattices: list[CharacterLattice], vocabulary: LabelledVocabulary
    ) -> list[CharacterLattice]:
        words, tags = vocabulary.words, vocabulary.labels["tags"]
        return [index_character_lattice(each, words, tags) for each in lattices]

    sizes: dict[str, Any] = {"vocabulary_size": vocabulary_size, "num_tags": num_tags}
    return Workload(
        name=name,
        description=(
            f"A lattice {unit} (Zhang and Yang 2018) over characters and the words of a"
            " list among them, with a tag per character."
        ),
        reads="columns of characters and tags and, as another file, a word list",
        vocabulary_size=vocabulary_size,
        model=model,
        init_params=partial(init_params, **sizes),
        read_text=partial(read_lattices, words=words),
        words=_characters_and_words,
        number=number,
        labels=(tags_of(num_tags),),
        sample=partial(sample_character_lattices, **sizes),
        zoo_data=(
            "weibo_ner/weiboNER_2nd_conll.train",
            "jieba_dict/dict.txt.small",
        ),
    )


def _characters_and_words(lattice: CharacterLattice) -> list[Any]:
    return [*lattice.characters, *(each.word for each in lattice.words)]


def read_lattices(path: Paths, words: PathLike | None = None) -> list[CharacterLattice]:
    r"""Reads lattices from files of tagged characters and a word list.

    Args:
        path: Files or folders. Unless ``words`` is given, at least one of the files
            must be a word list. A word list is recognised by its first line: a word, or
            a word and its count, or a word, its count and a tag.
        words: Path of the word list.

    Returns:
        The lattices; characters, tags and words are still strings.

    Raises:
        DataError: A file is missing or malformed, or there is no word list or no file
            of tagged characters.

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
            "lattices need a word list in addition to the files of characters; found"
            f" none among {_names(files)}; usually its path was left out; name a file"
            " with a word per line, its count and tag behind it if any"
        )
    if not text:
        raise DataError(
            "lattices need a file of characters and tags in addition to the word list;"
            f" found word lists only, {_names(lists)}; usually its path was left out,"
            " or its tags are missing; name a file with a character and its tag per"
            " line"
        )
    return read_character_lattices(text, read_word_list(lists))


def _names(files: list[Path]) -> str:
    return ", ".join(map(str, files))


def walk(
    params: Any,
    lattice: CharacterLattice,
    start: Callable[..., Any],
    char: Callable[..., Any],
    word: Callable[..., Any],
    char_words: Callable[..., Any],
) -> list[Any]:
    """Runs the cells of a lattice network from the first character to the last.

    Args:
        params: The parameters, passed to every cell as the first argument.
        lattice: A lattice of indices.
        start: ``start(params)`` returns the initial state.
        char: ``char(params, character, state)`` returns the state at a character where
            no word ends.
        word: ``word(params, word, state)`` returns a word's output, from the state at
            its first character.
        char_words: ``char_words(params, character, state, words)`` returns the state at
            a character where words end; ``words`` are the outputs of these words.

    Returns:
        The state at each character.

    Example:
        >>> from edbatch.data import LatticeWord
        >>> lattice = CharacterLattice("abc", "OOO", [LatticeWord(0, 2, "abc")])
        >>> walk(
        ...     None,
        ...     lattice,
        ...     start=lambda _: "",
        ...     char=lambda _, character, state: state + character,
        ...     word=lambda _, word, state: f"({state}:{word})",
        ...     char_words=lambda _, char, state, words: state + char + words[0],
        ... )
        ['a', 'ab', 'abc(a:abc)']
    """
    state = start(params)
    ending: dict[int, list[Any]] = defaultdict(list)
    states = []
    beginning = lattice.words_by_first()
    for place, character in enumerate(lattice.characters):
        if place in ending:
            state = char_words(params, character, state, ending.pop(place))
        else:
            state = char(params, character, state)
        states.append(state)
        for each in beginning[place]:
            ending[each.last].append(word(params, each.word, state))
    return states
