"""Beam search over the words of a sequence, written as ordinary Python over handles.

A hypothesis is a tuple of words and the handles of its state. `edbatch.value` returns
the best continuations. Finished hypotheses leave the beam, so an instance computes less
as its beam shrinks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import edbatch as eb

# (last word, state before it) -> (logits [V], state after it)
Step = Callable[[int, Any], tuple[Any, Any]]


@eb.cell(static=("count",))
def no_words(count: int) -> Array:
    """Returns the initial scores of a search, ``[count]``, all zero."""
    return jnp.zeros(count, jnp.float32)


@eb.cell(static=("count",))
def best_words(
    scores: Array, rank: Any, logits: Array, count: int
) -> tuple[Array, Array]:
    """Returns the best next words: their scores and indices, ``[count]`` each.

    A score is the log-probability of the whole sequence: that of the previous words,
    ``scores[rank]``, plus that of the new word. If the vocabulary has fewer than
    ``count`` words, the rest is padded with scores of minus infinity.
    """
    total = scores[rank] + jax.nn.log_softmax(logits)
    best, words = jax.lax.top_k(total, min(count, len(total)))
    missing = (0, count - len(best))
    return jnp.pad(best, missing, constant_values=-jnp.inf), jnp.pad(words, missing)


@eb.cell
def normalised(scores: Array, rank: Any, length: Any, penalty: Any) -> Array:
    """Returns a score divided by the number of words to the power of the penalty."""
    return scores[rank] / length.astype(jnp.float32) ** penalty


@dataclass(frozen=True)
class _Hypothesis:
    words: tuple[int, ...]
    state: Any  # handles of the state before the last word
    scores: Any  # handle of scores [width]; scores[rank] is this hypothesis's score
    rank: int


def beam_search(
    step: Step,
    state: Any,
    start: int,
    end: int,
    *,
    width: int,
    max_length: int,
    length_penalty: float = 1.0,
) -> tuple[list[int], Any]:
    """Searches for the likeliest sequence of words.

    Each step keeps the likeliest continuations of all hypotheses: ``width`` minus the
    number of finished hypotheses, which leave the beam. The search stops when no
    hypothesis is left or sequences have ``max_length`` words. The result is the
    finished hypothesis with the best normalised score; if none has finished, the best
    unfinished one.

    Args:
        step: ``step(word, state)`` returns the logits of the next word, and the state.
        state: The state before the first word.
        start: The word that starts every sequence.
        end: The word that ends a sequence.
        width: Number of hypotheses, 1 or more; 1 is greedy search.
        max_length: Maximum number of words, 1 or more, including ``end``.
        length_penalty: Hypotheses are compared by log-probability divided by the number
            of words to this power; 0 compares log-probabilities.

    Returns:
        The words after ``start``, including ``end``; their normalised score, a handle.

    Raises:
        EdbatchError: No hypothesis has finished and none can continue: their logits are
            NaN, or all minus infinity.
    """
    live = [_Hypothesis((start,), state, no_words(width), 0)]
    ended: list[_Hypothesis] = []
    for length in range(max_length):
        grown = _grow(step, live, width)[: width - len(ended)]
        live = [each for each in grown if each.words[-1] != end]
        ended += [each for each in grown if each.words[-1] == end]
        if not live and not ended:
            raise eb.EdbatchError(
                "a beam search needs words with a finite log-probability, but after"
                f" {length} words no hypothesis has any; usually the logits are NaN"
                " because the training diverged; check that parameters and logits are"
                " finite"
            )
        if not live:
            break
    scores = [
        normalised(each.scores, each.rank, len(each.words) - 1, length_penalty)
        for each in ended or live
    ]
    best = int(np.argmax(eb.value(scores))) if len(scores) > 1 else 0
    return list((ended or live)[best].words[1:]), scores[best]


def _grow(step: Step, live: list[_Hypothesis], width: int) -> list[_Hypothesis]:
    """Returns the ``width`` best continuations of all hypotheses, best first."""
    stepped = [step(each.words[-1], each.state) for each in live]
    candidates = [
        best_words(each.scores, each.rank, logits, width)
        for each, (logits, _) in zip(live, stepped, strict=True)
    ]
    scores, words = zip(*eb.value(candidates), strict=True)
    order = np.argsort(-np.concatenate(scores), kind="stable")[:width]
    return [
        _Hypothesis(
            (*live[k].words, int(words[k][rank])), stepped[k][1], candidates[k][0], rank
        )
        for k, rank in (divmod(int(each), width) for each in order)
        if np.isfinite(scores[k][rank])
    ]
