"""Vocabularies, which map tokens to indices; indexing of trees and sentences."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edbatch.data.sentences import Sentence
from edbatch.data.trees import Tree
from edbatch.errors import DataError, shown

UNKNOWN = "<unk>"
UNKNOWN_INDEX = 0


class Vocabulary:
    """Maps every frequent token to an index, and all others to `<unk>`, index 0.

    Indices are in order of decreasing frequency; tokens of equal frequency are in order
    of first appearance.

    Args:
        tokens: The tokens to count, for example all words of a training set.
        min_count: Tokens that occur less often get no index.
        max_size: Maximum number of indices, `<unk>` included.

    Raises:
        DataError: There is no token, a token is not a string, or a limit is below 1.

    Example:
        >>> vocabulary = Vocabulary(["b", "a", "b", "c"], max_size=3)
        >>> vocabulary.tokens
        ('<unk>', 'b', 'a')
        >>> vocabulary.index("b"), vocabulary.index("c"), len(vocabulary)
        (1, 0, 3)
    """

    __slots__ = ("_indices", "_tokens")

    def __init__(
        self,
        tokens: Iterable[str | int],
        *,
        min_count: int = 1,
        max_size: int | None = None,
    ) -> None:
        _check_limit("min_count", min_count)
        if max_size is not None:
            _check_limit("max_size", max_size)
        counts = Counter(tokens)
        if not counts:
            raise DataError(
                "a Vocabulary must be built from at least one token; found none; "
                "usually an iterator that was used up before; pass a list"
            )
        # most_common is a stable sort: ties stay in order of first appearance.
        kept = [
            _string(token)
            for token, count in counts.most_common()
            if count >= min_count and token != UNKNOWN
        ]
        self._tokens: tuple[str, ...] = (UNKNOWN, *kept)[:max_size]
        self._indices: dict[str | int, int] = {
            token: index for index, token in enumerate(self._tokens)
        }

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens in the order of their indices.

        `Vocabulary(vocabulary.tokens)` equals `vocabulary`, so saving the tokens is
        enough.
        """
        return self._tokens

    def index(self, token: str | int) -> int:
        """Returns the index of a token; 0 if it has none.

        Args:
            token: A token.

        Returns:
            Its index.

        Raises:
            DataError: The token is not a string, for example because it is already an
                index.

        Example:
            >>> Vocabulary(["dog"]).index("dog")
            1
        """
        index = self._indices.get(token)
        if index is not None:
            return index
        _string(token)
        return UNKNOWN_INDEX

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._indices

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self._tokens == other._tokens

    def __hash__(self) -> int:
        return hash(self._tokens)

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self)} tokens>"


@dataclass(frozen=True)
class LabelledVocabulary:
    """A vocabulary of words, and one vocabulary for each kind of label.

    Attributes:
        words: The vocabulary of the words.
        labels: The vocabulary of each kind of label, by kind, such as ``"tags"``.

    Example:
        >>> tags = {"tags": Vocabulary(["NOUN", "VERB"])}
        >>> len(LabelledVocabulary(Vocabulary(["dog"]), tags))
        2
    """

    words: Vocabulary
    labels: Mapping[str, Vocabulary]

    def __len__(self) -> int:
        """The number of words."""
        return len(self.words)


def index_tree(tree: Tree, vocabulary: Vocabulary) -> Tree:
    """Replaces the words of a tree by their indices and keeps the labels.

    Args:
        tree: A tree whose words are strings.
        vocabulary: The vocabulary of the words.

    Returns:
        The tree of indices; nodes without a word stay without one.

    Raises:
        DataError: A word is not a string.

    Example:
        >>> tree = Tree("S", children=[Tree("NN", "dogs"), Tree("VB", "bark")])
        >>> print(index_tree(tree, Vocabulary(["dogs"])))
        (S (NN 1) (VB 0))
    """

    def index(node: Tree, children: list[Tree]) -> Tree:
        word = None if node.word is None else vocabulary.index(node.word)
        return Tree(node.label, word, tuple(children))

    return tree.fold(lambda leaf: index(leaf, []), index)


def index_sentence(sentence: Sentence, words: Vocabulary, tags: Vocabulary) -> Sentence:
    """Replaces the words and tags of a sentence by their indices.

    Args:
        sentence: A sentence of strings.
        words: The vocabulary of the words.
        tags: The vocabulary of the tags; unknown tags become 0, like unknown words.

    Returns:
        The sentence of indices.

    Raises:
        DataError: A word or tag is not a string.

    Example:
        >>> sentence = Sentence(["dogs", "bark"], ["NOUN", "VERB"])
        >>> index_sentence(sentence, Vocabulary(["dogs"]), Vocabulary(sentence.tags))
        Sentence(words=(1, 0), tags=(1, 2))
    """
    return Sentence(
        tuple(words.index(word) for word in sentence.words),
        tuple(tags.index(tag) for tag in sentence.tags),
    )


def _string(token: str | int) -> str:
    if isinstance(token, str):
        return token
    raise DataError(
        f"a Vocabulary holds strings; found {shown(token)}, a {type(token).__name__}; "
        "usually data that is indexed already, or sampled; index it once, or not at all"
    )


def _check_limit(name: str, value: int) -> None:
    if value < 1:
        raise DataError(
            f"{name} must be 1 or more; found {value}; usually 0 for no limit; leave "
            "the argument out"
        )
