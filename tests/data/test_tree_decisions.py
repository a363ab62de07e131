"""Trees and the decisions that grow them."""

from pathlib import Path

import numpy as np
import pytest

from edbatch.data import (
    DataError,
    Decision,
    Tree,
    decisions,
    read_dependency_trees,
    sample_dependency_trees,
    sample_tree,
    tree_from_decisions,
)


def numbered(tree: Tree) -> Tree:
    """The tree with numbers as labels and without words."""
    numbers = iter(range(tree.num_nodes()))
    return tree.fold(
        lambda _: Tree(str(next(numbers))),
        lambda _, children: Tree(str(next(numbers)), None, tuple(children)),
    )


def test_the_order_is_that_of_rounds() -> None:
    #       S            round 0: S      round 2: the child of A, then the sibling of A
    #     A   B          round 1: A      round 3: the child of B
    #     C   D
    tree = Tree("S", None, [Tree("A", None, [Tree("C")]), Tree("B", None, [Tree("D")])])
    assert decisions(tree) == [
        Decision("S", down=True, on=False),
        Decision("A", down=True, on=True),
        Decision("C", down=False, on=False),
        Decision("B", down=True, on=False),
        Decision("D", down=False, on=False),
    ]


def test_decisions_grow_the_tree_again() -> None:
    trees = [*sample_dependency_trees(np.random.default_rng(0), 200), Tree("a")]
    for tree in map(numbered, trees):
        assert tree_from_decisions(decisions(tree)) == tree


def test_a_very_deep_tree() -> None:
    chain = sample_tree(np.random.default_rng(0), length=50_000, shape="chain")
    tree = numbered(chain)
    assert tree_from_decisions(decisions(tree)) == tree


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([], "found 0 decisions for more places than that"),
        ([("S", True, False)], "found 1 decisions for more places"),
        (
            [("S", False, False), ("A", False, False)],
            "more decisions than the 1 places",
        ),
        ([("S", False, True), ("A", False, False)], "found a sibling of the root"),
    ],
)
def test_decisions_of_no_tree(found, message) -> None:
    with pytest.raises(DataError, match=message):
        tree_from_decisions(found)


def test_ewt_is_grown_again(shared_data: Path) -> None:
    for tree in read_dependency_trees(shared_data / "ud_english_ewt")[:500]:
        assert tree_from_decisions(decisions(tree)) == tree.fold(
            lambda leaf: Tree(leaf.label),
            lambda node, children: Tree(node.label, None, tuple(children)),
        )
