"""The way of a lattice network along the characters of a sentence."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from edbatch.data import CharacterLattice


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
        params: The parameters, which every cell gets first.
        lattice: A lattice of numbers.
        start: Gives the state before the first character.
        char: ``char(params, character, state)`` gives the state at a character where
            no word ends.
        word: ``word(params, word, state)`` gives what a word hands on, from the state
            at its first character.
        char_words: ``char_words(params, character, state, words)`` gives the state at
            a character where words end, from what they hand on.

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
