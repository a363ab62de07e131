"""The arc-standard transition system: configurations, legal transitions, the oracle.

Source: Nivre, "Incrementality in Deterministic Dependency Parsing", 2004, section 3;
the static oracle as in Nivre, "Algorithms for Deterministic Incremental Dependency
Parsing", Computational Linguistics 2008. There is no artificial root on the stack: the
last remaining word is the root. So a sentence of L words takes 2 L - 1 transitions, and
every sequence of legal transitions ends in a tree with one root.

Transitions are integers: `SHIFT`, and for each relation r, ``1 + 2 r`` (`left_arc`: the
top of the stack is the head of the word below it) and ``2 + 2 r`` (`right_arc`: the
word below is the head of the top).
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from edbatch.data.dependencies import ROOT
from edbatch.data.parsed_sentences import ROOT_RELATION, crossing_arcs
from edbatch.errors import DataError

SHIFT = 0
NO_HEAD = -1


def left_arc(relation: int) -> int:
    """Returns the transition that makes the top the head of the word below."""
    return 1 + 2 * relation


def right_arc(relation: int) -> int:
    """Returns the transition that makes the word below the head of the top."""
    return 2 + 2 * relation


def count_transitions(num_relations: int) -> int:
    """Returns the number of transitions for a number of relations."""
    return 1 + 2 * num_relations


class Configuration:
    """The stack, the buffer and the arcs of a parse in progress.

    Attributes:
        stack: Words, counted from 0; the top is last.
        next_word: First word of the buffer.
        heads: [L] Head of each word, as in `ParsedSentence`; `NO_HEAD` if it has none
            yet.
        relations: [L] Relation of each word; `ROOT_RELATION` if it has no head yet.

    Args:
        length: Number of words, 1 or more.

    Example:
        >>> parse = Configuration(2)
        >>> for transition in (SHIFT, SHIFT, left_arc(5)):
        ...     parse.apply(transition)
        >>> parse.done, parse.heads, parse.relations
        (True, [2, 0], [5, 0])
    """

    def __init__(self, length: int) -> None:
        if length < 1:
            raise DataError(
                "a parse needs at least one word; found a sentence without any; usually"
                " an empty line that was read as a sentence; leave it out"
            )
        self.stack: list[int] = []
        self.next_word = 0
        self.heads = [NO_HEAD] * length
        self.relations = [ROOT_RELATION] * length

    def __repr__(self) -> str:
        """Summary in one line."""
        left = len(self.heads) - self.next_word
        return f"<Configuration: {len(self.stack)} words on the stack, {left} to come>"

    @property
    def done(self) -> bool:
        """Whether only one word, the root, is left."""
        return self.next_word == len(self.heads) and len(self.stack) == 1

    @property
    def may_shift(self) -> bool:
        """Whether a word is left in the buffer."""
        return self.next_word < len(self.heads)

    @property
    def may_reduce(self) -> bool:
        """Whether the stack has two words for an arc to connect."""
        return len(self.stack) > 1

    def legal(self, num_transitions: int) -> np.ndarray:
        """Returns which transitions are legal.

        Args:
            num_transitions: Number of transitions, A.

        Returns:
            ``[A] bool``, shared and read-only; arcs with the root's relation are never
            legal.

        Example:
            >>> parse = Configuration(2)
            >>> parse.legal(count_transitions(2)).tolist()
            [True, False, False, False, False]
            >>> parse.apply(SHIFT)
            >>> parse.apply(SHIFT)
            >>> parse.legal(count_transitions(2)).tolist()
            [False, False, False, True, True]
        """
        return _legal(num_transitions, self.may_shift, self.may_reduce)

    def apply(self, transition: int) -> None:
        """Makes a transition.

        Args:
            transition: A legal transition.

        Raises:
            DataError: The transition is not legal.
        """
        if transition == SHIFT:
            if not self.may_shift:
                raise self._illegal("a shift", "the buffer is empty")
            self.stack.append(self.next_word)
            self.next_word += 1
        else:
            self._reduce(transition)
        if len(self.stack) == 1 and self.done:
            self.heads[self.stack[0]] = ROOT

    def _reduce(self, transition: int) -> None:
        if not self.may_reduce:
            raise self._illegal("an arc", f"the stack holds {len(self.stack)} of two")
        relation = (transition - 1) // 2
        if relation == ROOT_RELATION:
            raise self._illegal("an arc", "its relation is that of the root")
        top, below = self.stack.pop(), self.stack.pop()
        is_left = transition == left_arc(relation)
        head, dependent = (top, below) if is_left else (below, top)
        self.heads[dependent] = head + 1
        self.relations[dependent] = relation
        self.stack.append(head)

    def _illegal(self, what: str, why: str) -> DataError:
        return DataError(
            f"a transition must be legal; found {what} where {why}; usually the"
            " transition with the largest score of all was taken; take the largest"
            " among those that legal() allows"
        )


@cache
def _legal(num_transitions: int, may_shift: bool, may_reduce: bool) -> np.ndarray:
    """Returns which transitions are legal; cached, as decoders call it often."""
    found = np.full(num_transitions, may_reduce)
    found[SHIFT] = may_shift
    found[left_arc(ROOT_RELATION) : right_arc(ROOT_RELATION) + 1] = False
    found.flags.writeable = False
    return found


def oracle(heads: Sequence[int], relations: Sequence[str | int]) -> list[int]:
    """Returns the transitions that derive a projective tree, arcs as early as possible.

    Args:
        heads: [L] The heads, as in `ParsedSentence`.
        relations: [L] The relations, as indices.

    Returns:
        The ``2 L - 1`` transitions.

    Raises:
        DataError: Arcs cross, so no transitions derive the tree.

    Example:
        >>> oracle([2, 0], [5, 0]) == [SHIFT, SHIFT, left_arc(5)]
        True
    """
    if crossing_arcs(heads):
        raise DataError(
            "arc-standard transitions derive projective trees only; found crossing "
            f"arcs among the heads {list(heads)}; usually a sentence that "
            "was not filtered; leave out those that are not is_projective"
        )
    missing = np.bincount(heads, minlength=len(heads) + 1)[1:]  # dependents to attach
    stack: list[int] = []
    found: list[int] = []
    for word in range(len(heads)):
        found.append(SHIFT)
        stack.append(word)
        while len(stack) > 1:
            below, top = stack[-2:]
            if heads[below] == top + 1:
                found.append(left_arc(int(relations[below])))
                del stack[-2]
                missing[top] -= 1
            elif heads[top] == below + 1 and not missing[top]:
                found.append(right_arc(int(relations[top])))
                stack.pop()
                missing[below] -= 1
            else:
                break
    return found
