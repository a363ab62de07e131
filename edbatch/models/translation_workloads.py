"""The workloads over pairs of sentences."""

from functools import partial

from edbatch.data import (
    PairVocabulary,
    SentencePair,
    index_sentence_pair,
    read_sentence_pairs,
    sample_sentence_pairs,
)
from edbatch.data.sentence_pairs import TOKENS
from edbatch.errors import nearest
from edbatch.models import lstm_nmt
from edbatch.models.errors import WorkloadError
from edbatch.models.workload import Workload


def lstm_nmt_workload(
    vocabulary_size: int = 10_000,
    source_tokens: str = "words",
    target_tokens: str = "words",
) -> Workload:
    """Makes the workload ``"lstm-nmt"``; options as for `get_workload`."""
    for option, value in (
        ("source_tokens", source_tokens),
        ("target_tokens", target_tokens),
    ):
        if value not in TOKENS:
            raise WorkloadError(
                f"option {option!r} of 'lstm-nmt' is 'words' or 'characters' but this"
                f" is {value!r}; {nearest(str(value), TOKENS)}"
            )
    return Workload(
        name="lstm-nmt",
        description=(
            "An LSTM encoder-decoder with attention over the source (Luong et al."
            " 2015), with the logits of every target word."
        ),
        vocabulary_size=vocabulary_size,
        model=lstm_nmt.translate,
        init_params=partial(lstm_nmt.init_params, vocabulary_size=vocabulary_size),
        read_text=partial(
            read_sentence_pairs,
            source_tokens=source_tokens,
            target_tokens=target_tokens,
        ),
        words=lambda pair: pair.source,
        target_words=lambda pair: pair.target,
        number=_number,
        sample=partial(sample_sentence_pairs, vocabulary_size=vocabulary_size),
    )


def _number(pairs: list[SentencePair], words: PairVocabulary) -> list[SentencePair]:
    return [index_sentence_pair(each, words) for each in pairs]
