"""Sampler of sentences with projective parses that resemble real ones in shape.

The trees come from `sample_dependency_trees`; their words are ordered such that no arcs
cross. A dependent precedes its head with probability 0.61, the share of arcs to the
left in UD English EWT.
"""

import numpy as np

from edbatch.data.dependencies import ROOT
from edbatch.data.parsed_sentences import ROOT_RELATION, ParsedSentence
from edbatch.data.samplers import sample_dependency_trees
from edbatch.data.trees import Tree
from edbatch.data.zipf import check_request

NO_PARENT = -1

_TO_THE_LEFT = 0.61


def sample_parsed_sentences(
    rng: np.random.Generator,
    count: int,
    vocabulary_size: int = 10_000,
    num_tags: int = 17,
    num_relations: int = 40,
    *,
    length: int | None = None,
) -> list[ParsedSentence]:
    """Samples parsed sentences whose relations can be learned.

    A word's tag is `word % num_tags`. Its relation is determined by its tag and the
    side of its head.

    Args:
        rng: The random generator.
        count: Number of sentences.
        vocabulary_size: Words are integers below this number.
        num_tags: Tags are integers below this number.
        num_relations: Relations are integers below this number; the root's relation is
            0, which no other word has.
        length: Number of words of each sentence; drawn by `sample_lengths` if None.

    Returns:
        The sentences, all projective.

    Raises:
        DataError: `rng` is not a generator, or a number is too small.

    Example:
        >>> [one] = sample_parsed_sentences(np.random.default_rng(0), 1, 50, length=6)
        >>> len(one), one.is_projective
        (6, True)
    """
    check_request(rng, num_tags=(num_tags, 1), num_relations=(num_relations, 2))
    return [
        _laid_out(tree, rng, num_tags, num_relations)
        for tree in sample_dependency_trees(rng, count, vocabulary_size, length=length)
    ]


def _laid_out(
    tree: Tree, rng: np.random.Generator, num_tags: int, num_relations: int
) -> ParsedSentence:
    nodes, parents = _preorder(tree)
    before = rng.random(len(nodes)) < _TO_THE_LEFT  # does the node precede its head?
    order = _in_order(parents, before.tolist())
    place = {node: k for k, node in enumerate(order, start=1)}
    words = [int(nodes[node].word or 0) for node in order]
    tags = [word % num_tags for word in words]
    place[NO_PARENT] = ROOT
    heads = [place[parents[node]] for node in order]
    relations = [
        1 + (2 * tag + (head > k)) % (num_relations - 1) if head else ROOT_RELATION
        for k, (tag, head) in enumerate(zip(tags, heads, strict=True), start=1)
    ]
    return ParsedSentence(tuple(words), tuple(tags), tuple(heads), tuple(relations))


def _preorder(tree: Tree) -> tuple[list[Tree], list[int]]:
    """Lists the nodes, parents first, and the index of each node's parent."""
    nodes: list[Tree] = []
    parents: list[int] = []
    stack: list[tuple[Tree, int]] = [(tree, NO_PARENT)]
    while stack:
        node, parent = stack.pop()
        stack += [(child, len(nodes)) for child in reversed(node.children)]
        nodes.append(node)
        parents.append(parent)
    return nodes, parents


def _in_order(parents: list[int], before: list[bool]) -> list[int]:
    """Orders nodes so that each subtree is contiguous; the root is node 0."""
    sides: list[tuple[list[int], list[int]]] = [([], []) for _ in parents]
    for node, parent in enumerate(parents):
        if parent != NO_PARENT:
            sides[parent][0 if before[node] else 1].append(node)
    order: list[int] = []
    stack = [(0, False)]
    while stack:
        node, opened = stack.pop()
        if opened:
            order.append(node)
            continue
        left, right = sides[node]
        stack += [(child, False) for child in reversed(right)]
        stack.append((node, True))
        stack += [(child, False) for child in reversed(left)]
    return order
