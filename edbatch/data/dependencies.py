"""Builds dependency trees from the heads of words; checks that heads form a tree."""

from collections.abc import Sequence

from edbatch.data.trees import Tree
from edbatch.errors import DataError

ROOT = 0  # the head of the word that has none; words count from 1

_SHOWN = 8  # maximum number of words that a message names


def tree_from_heads(
    words: Sequence[str | int],
    heads: Sequence[int],
    labels: Sequence[str | None] | None = None,
) -> Tree:
    """Builds a dependency tree: one node per word, whose children are its dependents.

    Args:
        words: [L] The words.
        heads: [L] The head of each word: the position of another word, counted from
            1, or 0 for the root. This is also the form of `.parents` files.
        labels: [L] The relation of each word to its head, if known.

    Returns:
        The tree; the children of every node are in surface order.

    Raises:
        DataError: The lengths differ, or the heads do not form a tree with one root.

    Example:
        >>> tree = tree_from_heads(["the", "dog", "barks"], [2, 3, 0])
        >>> tree.word, tree.children[0].word, tree.children[0].children[0].word
        ('barks', 'dog', 'the')
    """
    if labels is None:
        labels = [None] * len(words)
    if not len(words) == len(heads) == len(labels):
        raise DataError(
            "a dependency tree must have one head and one label per word; found "
            f"{len(words)} words, {len(heads)} heads and {len(labels)} labels; usually "
            "lines of different sentences; give sequences of one length"
        )
    fault = find_fault(heads)
    if fault is not None:
        raise DataError(fault[1])
    return build_tree(words, heads, labels)


def find_fault(heads: Sequence[int]) -> tuple[int, str] | None:
    """Explains why heads do not form a tree with one root.

    Args:
        heads: [L] As for `tree_from_heads`.

    Returns:
        None if they form such a tree, otherwise the 0-based position of the word at
        fault and the error message.

    Example:
        >>> find_fault([2, 0]) is None
        True
        >>> find_fault([2, 0, 9])[0]
        2
    """
    count = len(heads)
    for word, head in enumerate(heads):
        if not 0 <= head <= count:
            return word, (
                f"a head must be 0 or a word of the sentence, 1 to {count}; found "
                f"{head} at word {word + 1}; usually a sentence cut in two, or ids "
                "renumbered without the heads; fix the head"
            )
    roots = [word for word, head in enumerate(heads) if head == ROOT]
    if len(roots) != 1:
        return _root_fault(count, roots)
    cycle = _find_cycle(heads)
    if cycle:
        return cycle[0], (
            "following heads must lead to the root; found the words "
            f"{_shown(cycle)} in a cycle; usually a mistake of annotation; fix one of "
            "their heads"
        )
    return None


def build_tree(
    words: Sequence[str | int], heads: Sequence[int], labels: Sequence[str | None]
) -> Tree:
    """Builds a tree like `tree_from_heads`, from heads already checked by `find_fault`.

    Args:
        words: [L] The words.
        heads: [L] The checked heads.
        labels: [L] The labels.

    Returns:
        The tree.

    Example:
        >>> build_tree(["dogs", "bark"], [2, 0], ["nsubj", "root"]).label
        'root'
    """
    dependents: list[list[int]] = [[] for _ in range(len(words) + 1)]
    for word, head in enumerate(heads, start=1):
        dependents[head].append(word)
    order = list(dependents[ROOT])
    for word in order:  # grows during iteration: parents before children
        order += dependents[word]
    built: dict[int, Tree] = {}
    for word in reversed(order):
        children = tuple(built.pop(child) for child in dependents[word])
        built[word] = Tree(labels[word - 1], words[word - 1], children)
    return built[order[0]]


def _root_fault(count: int, roots: Sequence[int]) -> tuple[int, str]:
    rule = "exactly one word must have the head 0, the root; found "
    if not roots:
        return 0, (
            f"{rule}none among {count} words; usually a sentence cut in two, or heads "
            "counted from 0; set the root's head to 0 and count words from 1"
        )
    return roots[1], (
        f"{rule}the words {_shown([*roots])}; usually two sentences without a blank "
        "line between them; separate them, or attach one root to the other"
    )


def _find_cycle(heads: Sequence[int]) -> list[int]:
    """Finds the words of one cycle, each followed by its head; empty without one."""
    seen_from = [-1] * len(heads)  # start of the walk that reached a word first
    for start in range(len(heads)):
        word = start
        while word != ROOT - 1 and seen_from[word] < 0:
            seen_from[word] = start
            word = heads[word] - 1
        if word != ROOT - 1 and seen_from[word] == start:
            cycle = [word]
            while heads[cycle[-1]] - 1 != word:
                cycle.append(heads[cycle[-1]] - 1)
            return cycle
    return []


def _shown(words: Sequence[int]) -> str:
    more = ", ..." if len(words) > _SHOWN else ""
    return ", ".join(str(word + 1) for word in words[:_SHOWN]) + more
