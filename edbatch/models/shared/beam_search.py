"""Beam search over the words of a sequence, as ordinary Python over handles.

Hypotheses are lists of words beside the handles of their states; `edbatch.value` tells
the best continuations. Those that end leave the beam, so that an instance whose beam
shrinks computes less.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import edbatch as eb

# (last word, state behind the words before it) -> (logits [V], state behind all)
Step = Callable[[int, Any], tuple[Any, Any]]


@eb.cell(static=("count",))
def no_words(count: int) -> Array:
    """Gives the scores ``[count]`` from which a search starts, zero."""
    return jnp.zeros(count, jnp.float32)


@eb.cell(static=("count",))
def best_words(
    scores: Array, rank: Any, logits: Array, count: int
) -> tuple[Array, Array]:
    """Gives the best words to go on with: their scores and numbers, ``[count]`` each.

    A score is the log-probability of all words: of those before, ``scores[rank]``, and
    of the new one. A vocabulary of fewer words is filled up, by scores of minus
    infinity.
    """
    total = scores[rank] + jax.nn.log_softmax(logits)
    best, words = jax.lax.top_k(total, min(count, len(total)))
    missing = (0, count - len(best))
    return jnp.pad(best, missing, constant_values=-jnp.inf), jnp.pad(words, missing)


@eb.cell
def normalised(scores: Array, rank: Any, length: Any, penalty: Any) -> Array:
    """Gives a score divided by the number of words to the power of the penalty."""
    return scores[rank] / length.astype(jnp.float32) ** penalty


@dataclass(frozen=True)
class _Hypothesis:
    words: tuple[int, ...]
    state: Any  # handles, behind all words but the last
    scores: Any  # handle of scores [width], of which the one at `rank` is its own
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

    Each step keeps the likeliest of all continuations: ``width`` of them less those
    that have ended, which leave the beam. The search is over when none is left, or
    words have reached their greatest number. Of those that ended, or if none did of the
    others, the best by normalised score is the result.

    Args:
        step: ``step(word, state)`` gives the logits of the next word, and the state.
        state: The state before the first word.
        start: The word that sequences start from.
        end: The word that ends them.
        width: Number of hypotheses, 1 or more; 1 is greedy search.
        max_length: Greatest number of words, 1 or more, the end included.
        length_penalty: Scores are compared by log-probability divided by the number of
            words to this power; 0 compares log-probabilities.

    Returns:
        The words behind the start, the end included; their normalised score, a handle.

    Raises:
        EdbatchError: None has ended, and none can go on: its logits are NaN, or all
            minus infinity.
    """
    live = [_Hypothesis((start,), state, no_words(width), 0)]
    ended: list[_Hypothesis] = []
    for length in range(max_length):
        grown = _grow(step, live, width)[: width - len(ended)]
        live = [each for each in grown if each.words[-1] != end]
        ended += [each for each in grown if each.words[-1] == end]
        if not live and not ended:
            raise eb.EdbatchError(
                "a beam search goes on by words whose log-probability is finite, but"
                f" after {length} words the logits of every hypothesis leave none;"
                " usually they are NaN, as parameters are after a training that"
                " diverged; check that parameters and logits are finite"
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
    """Makes the ``width`` best continuations of all hypotheses, best first."""
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
