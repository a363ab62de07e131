"""The tagged sentence, the type that readers and samplers of sentences return."""

from dataclasses import dataclass

from edbatch.errors import DataError


@dataclass(frozen=True, slots=True)
class Sentence:
    """Words with one tag each.

    Attributes:
        words: [L] The tokens, or their indices once a vocabulary is applied; any
            iterable is accepted.
        tags: [L] The tags, or their indices.

    Raises:
        DataError: The numbers of tags and words differ.

    Example:
        >>> sentence = Sentence(["dogs", "bark"], ["NOUN", "VERB"])
        >>> sentence.words, len(sentence)
        (('dogs', 'bark'), 2)
    """

    words: tuple[str | int, ...]
    tags: tuple[str | int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "tags", tuple(self.tags))
        if len(self.words) != len(self.tags):
            raise DataError(
                "a Sentence must have one tag per word; found "
                f"{len(self.words)} words and {len(self.tags)} tags; usually the two "
                "come from different sentences, or a str was given for a tuple; give "
                "two sequences of one length"
            )

    def __len__(self) -> int:
        return len(self.words)
