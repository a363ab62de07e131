"""The public interface of a PQ-tree; reductions have their own tests."""

import itertools
import pickle

import numpy as np
import plain_pq_tree as plain
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edbatch.errors import PlanError
from edbatch.memory_planner import PQTree
from edbatch.memory_planner import pq_nodes as nodes


@pytest.mark.parametrize(
    ("n", "text", "orderings"), [(0, "{}", 1), (1, "0", 1), (2, "{0 1}", 2)]
)
def test_the_smallest_trees(n, text, orderings):
    tree = PQTree(n)
    assert tree.reduce([]) and tree.reduce(range(n))
    tree.check_structure()
    assert tree.num_leaves == n
    assert tree.canonical() == text
    assert tree.num_orderings() == orderings
    assert sorted(tree.orderings()) == sorted(itertools.permutations(range(n)))
    assert tree.frontier().tolist() == list(range(n))
    assert tree.frontier().dtype == np.int32


@pytest.mark.parametrize(
    "subset",
    [
        [4, 1],
        (4, 1),
        {4, 1},
        range(1, 5, 3),
        iter([4, 1]),
        np.array([4, 1]),
        np.array([4, 1], np.uint8),
        np.array([[4, 0, 1, 0]], np.int32)[0, ::2],
        [np.int32(4), 1],
    ],
)
def test_what_a_subset_may_be(subset):
    tree = PQTree(5)
    assert tree.reduce(subset) is True
    assert tree.canonical() == "{0 {1 4} 2 3}"


@pytest.mark.parametrize(
    ("subset", "text"),
    [
        ([0, 5], r"0 or more and below 5, but this one has 5; leaves are numbered"),
        ([2, -1], r"0 or more and below 5, but this one has -1;"),
        ([2**40], r"has 1099511627776;"),
        ([1, 2, 1], r"must not repeat a leaf, but this one has 1 twice; give a set"),
        ([1.0, 2.0], r"whole numbers, but this one is \[1.0, 2.0\];"),
        ([True, False], r"this one is \[True, False\]; of a mask, give np.flatnonzero"),
        ([[1, 2], [3, 4]], r"a subset is a sequence of leaves"),
        ([[1, 2], [3]], r"a subset is a sequence of leaves"),
        ([10**30], r"a subset is a sequence of leaves"),
        (["a"], r"a subset is a sequence of leaves"),
        (3, r"whole numbers, but this one is 3;"),
        (np.array(3), r"whole numbers, but this one is array\(3\);"),
    ],
)
def test_a_wrong_subset_is_named(subset, text):
    tree = PQTree(5)
    tree.reduce([1, 2])
    with pytest.raises(PlanError, match=text):
        tree.reduce(subset)
    tree.check_structure()
    assert tree.canonical() == "{0 {1 2} 3 4}"
    assert tree.reduce([0, 1])


def test_a_wrong_number_of_leaves():
    with pytest.raises(PlanError, match="must be 0 or more but is -2; give"):
        PQTree(-2)
    with pytest.raises(TypeError, match="integer"):
        PQTree(2.0)


@given(st.integers(1, 7), st.lists(st.sets(st.integers(0, 6), min_size=2)))
def test_numbers_of_orderings(n, subsets):
    tree = PQTree(n)
    for subset in subsets:
        tree.reduce(each for each in subset if each < n)
    orders = list(tree.orderings())
    assert len(orders) == len({*orders}) == tree.num_orderings()
    assert tuple(tree.frontier().tolist()) in orders
    assert sorted(orders) == sorted(plain.orderings(plain.parse(tree.canonical())))


def test_orderings_come_one_by_one():
    tree = PQTree(100)
    first, second = itertools.islice(tree.orderings(), 2)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))


def test_a_copy_changes_on_its_own():
    tree = PQTree(6)
    tree.reduce([1, 2])
    other = tree.copy()
    assert other.reduce([2, 3])
    assert tree.canonical() == "{0 {1 2} 3 4 5}"
    assert tree.reduce([1, 4]) and not other.reduce([2, 4])
    assert other.canonical() == "{0 [1 2 3] 4 5}"
    tree.check_structure()
    other.check_structure()
    assert pickle.loads(pickle.dumps(tree)).canonical() == tree.canonical()


def test_a_long_tree_is_shown_in_part():
    text = repr(PQTree(1000))
    assert text.startswith("PQTree({0 1 2 3 ")
    assert text.endswith("..., 1000 leaves)")
    assert len(text) < 250


def test_a_deep_tree_needs_no_recursion():
    n = 3000
    tree = PQTree(n)
    assert all(tree.reduce(range(k)) for k in range(2, n))
    tree.check_structure()
    assert tree.canonical().startswith("{" * (n - 1) + "0 1} 2} 3} ")
    assert tree.num_orderings() == 2 ** (n - 1)
    assert len({*itertools.islice(tree.orderings(), 3)}) == 3
    # The highest leaf next to the deepest: all nodes between become one Q node.
    assert tree.reduce([0, n - 1])
    tree.check_structure()
    assert sorted(tree.orderings())[0] == (*range(n - 2, -1, -1), n - 1)


BROKEN = "{[{0 1} 2 3] 4 5 6 7}"
ROOT, GROUP, CHAIN, FREED, TOP = 8, 10, 12, 11, -1  # rows of its nodes


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ([(5, nodes.PARENT, CHAIN)], "row 5 knows its P node"),
        ([(5, nodes.LEFT, 7)], "row 5 has two true neighbours"),
        ([(ROOT, nodes.CHILDREN, 6)], "row 8 counts its children"),
        ([(ROOT, nodes.CHILDREN, 4)], "the ring of row 8 closes"),
        ([(2, nodes.PARENT, CHAIN)], "row 2 knows its Q node if an end"),
        ([(3, nodes.PARENT, nodes.NONE)], "row 3 knows its Q node if an end"),
        ([(2, nodes.LEFT, 0), (2, nodes.RIGHT, 3)], "row 0 has two true neighbours"),
        ([(3, nodes.LEFT, 3), (3, nodes.RIGHT, 3)], "row 3 has two true neighbours"),
        ([(CHAIN, nodes.LAST, 2)], "row 12 knows both of its ends"),
        ([(CHAIN, nodes.KIND, nodes.UNUSED)], "row 12 of the tree is in use"),
        ([(6, nodes.MARK, 1)], "row 6 has no mark"),
        ([(6, nodes.KIND, nodes.P)], "row 6 is a leaf if below 8"),
        ([(TOP, nodes.ROOT, CHAIN)], "the root, row 12, has no neighbours"),
        ([(TOP, nodes.USED, 14)], "every row that was used"),
        ([(TOP, nodes.FREE, nodes.NONE)], "every row that was used"),
        ([(TOP, nodes.FREE, GROUP)], "row 10 is free"),
        ([(FREED, nodes.PARENT, FREED)], "row 11 is free or in the tree"),
        (
            [(4, nodes.RIGHT, 6), (6, nodes.LEFT, 4), (ROOT, nodes.CHILDREN, 4)],
            "every leaf is in the tree",
        ),
        (
            [(0, nodes.LEFT, 0), (0, nodes.RIGHT, 0), (GROUP, nodes.CHILDREN, 1)],
            "the P node 10 has two children or more",
        ),
        (
            [
                (GROUP, nodes.RIGHT, 2),
                (GROUP, nodes.PARENT, nodes.NONE),
                (CHAIN, nodes.LAST, 3),
            ],
            "row 2 has one parent",
        ),
        (
            [
                (GROUP, nodes.LEFT, 3),
                (GROUP, nodes.RIGHT, nodes.NONE),
                (3, nodes.LEFT, GROUP),
                (3, nodes.RIGHT, nodes.NONE),
            ],
            "the Q node 12 has three children or more",
        ),
    ],
)
def test_the_check_finds_a_broken_tree(changes, text):
    tree = PQTree(8)
    for subset in ([0, 1, 2, 3], [0, 1], [0, 1, 2], [2, 3]):
        assert tree.reduce(subset)
    assert tree.canonical() == BROKEN
    tree.check_structure()
    node, _ = tree._arrays
    for row, column, value in changes:
        node[row, column] = value
    with pytest.raises(AssertionError, match=text):
        tree.check_structure()
