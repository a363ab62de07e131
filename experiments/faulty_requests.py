"""Faulty requests of the fault test, and how they are mixed with good ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from load_models import ServedModel

from edbatch.data import ParsedSentence, SentencePair, Tree

# The kinds of requests.
GOOD, POISONED, CANCELLED, OVERSIZED, LATE, HUNG_UP = (
    *("good", "poisoned", "cancelled", "oversized", "deadline"),
    "hung up",
)
_UNFIT = 2**40  # a word that does not fit into int32
_LONG = 1500  # words


class PoisonedError(Exception):
    """Raised by the model for a poisoned request."""


@dataclass(frozen=True)
class Faulty:
    """An instance and its fault.

    Attributes:
        instance: The instance.
        fails: When the model raises: ``"at once"``, before any cell is called;
            ``"late"``, after all cells; or "" for never.
    """

    instance: Any
    fails: str = ""


def with_faults(served: ServedModel) -> Callable[[Any, Faulty], Any]:
    """Returns the model as a function of instances, some of which are poisoned."""

    def run(params: Any, request: Faulty) -> Any:
        if request.fails == "at once":
            raise PoisonedError("poisoned at once")
        found = served.model(params, request.instance)
        if request.fails:
            raise PoisonedError("poisoned late")
        return found

    return run


def poisoned(instance: Any, number: int) -> Faulty:
    """Poisons an instance in one of three ways, chosen by `number`.

    Args:
        instance: The instance.
        number: Number modulo 3 chooses the way.

    Returns:
        An instance that makes the model raise at once or late, or that has a word that
        does not fit its dtype.
    """
    if number % 3 == 2:
        return Faulty(_with_words(instance, lambda words: (_UNFIT, *words[1:])))
    return Faulty(instance, ("at once", "late")[number % 3])


def oversized(instance: Any) -> Faulty:
    """Makes an instance that is much too long."""
    if isinstance(instance, Tree):
        words = [*instance.words()]
        tree = Tree(word=words[0])
        for _ in range(_LONG):
            tree = Tree(children=(tree, Tree(word=words[0])))
        return Faulty(tree)
    if isinstance(instance, ParsedSentence):
        return Faulty(
            ParsedSentence(
                words=instance.words[:1] * _LONG,
                tags=instance.tags[:1] * _LONG,
                heads=range(_LONG),
                relations=instance.relations[:1] * _LONG,
            )
        )
    return Faulty(_with_words(instance, lambda words: words[:1] * _LONG))


def _with_words(
    instance: Any, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]
) -> Any:
    """Returns an instance with other words; of a tree, the first leaves change."""
    if isinstance(instance, Tree):
        words = iter(change(tuple(instance.words())))
        return instance.fold(
            lambda leaf: replace(leaf, word=next(words)),
            lambda node, children: replace(node, children=tuple(children)),
        )
    if isinstance(instance, SentencePair):
        return replace(instance, source=change(tuple(instance.source)))
    return replace(instance, words=change(tuple(instance.words)))


def draw_kinds(rng: np.random.Generator, count: int, percent: float) -> np.ndarray:
    """Draws the kinds of requests.

    Args:
        rng: The random generator.
        count: Number of requests.
        percent: Percentage of each fault.

    Returns:
        The kinds, ``[count]``, strings.
    """
    faults = [POISONED, CANCELLED, OVERSIZED, LATE, HUNG_UP]
    shares = [0.01 * percent] * len(faults)
    return rng.choice([GOOD, *faults], size=count, p=[1 - sum(shares), *shares])
