"""Sentences with dependency parses, and the test for crossing arcs."""

from collections.abc import Sequence
from dataclasses import dataclass

from edbatch.data.dependencies import ROOT, find_fault
from edbatch.data.vocabulary import Vocabulary
from edbatch.errors import DataError

ROOT_RELATION = 0  # index of the root's relation, which no other word has


@dataclass(frozen=True, slots=True)
class ParsedSentence:
    """Words, each with a part of speech, a head and its relation to the head.

    Attributes:
        words: [L] The tokens, or their indices once a vocabulary is applied; any
            iterable is accepted.
        tags: [L] The parts of speech, or their indices.
        heads: [L] The head of each word: the position of another word, counted from 1,
            or 0 for the root.
        relations: [L] The relation of each word to its head, or its index.

    Raises:
        DataError: The lengths differ, or the heads do not form a tree with one root.

    Example:
        >>> ParsedSentence(["bark"], ["VERB"], [0], ["root"])
        ParsedSentence(words=('bark',), tags=('VERB',), heads=(0,), relations=('root',))
    """

    words: tuple[str | int, ...]
    tags: tuple[str | int, ...]
    heads: tuple[int, ...]
    relations: tuple[str | int, ...]

    def __post_init__(self) -> None:
        for field in ("words", "tags", "heads", "relations"):
            object.__setattr__(self, field, tuple(getattr(self, field)))
        lengths = [len(self.tags), len(self.heads), len(self.relations)]
        if any(length != len(self.words) for length in lengths):
            raise DataError(
                "a ParsedSentence must have a tag, a head and a relation per word; "
                f"found {len(self.words)} words and {lengths} of these; usually they "
                "come from different sentences; give sequences of one length"
            )
        fault = find_fault(self.heads)
        if fault is not None:
            raise DataError(fault[1])

    def __len__(self) -> int:
        return len(self.words)

    @property
    def is_projective(self) -> bool:
        """Whether no arcs cross, including the root's arc from before the sentence.

        Example:
            >>> ParsedSentence("abcd", "XXXX", [3, 4, 0, 3], "rrrr").is_projective
            False
        """
        return not crossing_arcs(self.heads)


def crossing_arcs(heads: Sequence[int]) -> bool:
    """Returns whether arcs of a tree cross when drawn above the sentence.

    Args:
        heads: [L] The heads of a tree, as in `ParsedSentence`.

    Returns:
        True for non-projective trees, which arc-standard parsers cannot derive.

    Example:
        >>> crossing_arcs([2, 0, 2]), crossing_arcs([3, 4, 0, 3])
        (False, True)
    """
    arcs = sorted(
        (min(word, head), -max(word, head)) for word, head in enumerate(heads, start=1)
    )
    ends: list[int] = []  # right ends of the open arcs, the innermost last
    for left, minus_right in arcs:
        while ends and ends[-1] <= left:
            ends.pop()
        if ends and ends[-1] < -minus_right:
            return True
        ends.append(-minus_right)
    return False


def index_parsed_sentence(
    sentence: ParsedSentence,
    words: Vocabulary,
    tags: Vocabulary,
    relations: Vocabulary,
) -> ParsedSentence:
    """Replaces words, tags and relations by their indices.

    Args:
        sentence: A sentence of strings.
        words: The vocabulary of the words.
        tags: The vocabulary of the tags; unknown tags become 0, like unknown words.
        relations: The vocabulary of the relations.

    Returns:
        The sentence of indices, with the same heads. The relation of the root is
        `ROOT_RELATION`, 0; other relations are 1 + their index, so unknown ones are 1.

    Raises:
        DataError: A word, tag or relation is not a string.

    Example:
        >>> sentence = ParsedSentence(["bark"], ["VERB"], [0], ["root"])
        >>> vocabularies = (Vocabulary(["bark"]), Vocabulary(["VERB"]))
        >>> index_parsed_sentence(sentence, *vocabularies, Vocabulary(["root"]))
        ParsedSentence(words=(1,), tags=(1,), heads=(0,), relations=(0,))
    """
    return ParsedSentence(
        tuple(words.index(word) for word in sentence.words),
        tuple(tags.index(tag) for tag in sentence.tags),
        sentence.heads,
        tuple(
            ROOT_RELATION if head == ROOT else 1 + relations.index(relation)
            for head, relation in zip(sentence.heads, sentence.relations, strict=True)
        ),
    )
