"""PQ-tree reductions vs. drawn cases, all permutations and a plain reference."""

import itertools
import math
import random

import numpy as np
import plain_pq_tree as plain
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from edbatch.memory_planner import PQTree
from edbatch.memory_planner.pq_reduction import frontier, new_tree, reduce


def tree_of(text):
    """Builds the tree written as `text`, by reductions known to produce it."""
    drawn = plain.parse(text)
    tree = PQTree(len(plain.leaves(drawn)))
    for subset in plain.defining_subsets(drawn):
        assert tree.reduce(subset)
    assert tree.canonical() == text
    return tree


@pytest.mark.parametrize(
    ("template", "before", "subset", "after"),
    [
        ("L1", "{0 1 [2 3 4]}", {3}, "{0 1 [2 3 4]}"),
        ("P1", "{0 1 {2 3}}", {2, 3}, "{0 1 {2 3}}"),
        ("P1 below", "{0 1 {2 3}}", {1, 2, 3}, "{0 {1 {2 3}}}"),
        ("P2", "{0 1 2 3 4}", {1, 3}, "{0 {1 3} 2 4}"),
        ("P2 below", "{0 {1 2 3}}", {1, 2}, "{0 {{1 2} 3}}"),
        ("P3", "{0 1 {2 3}}", {0, 2}, "{[0 2 3] 1}"),
        ("P3 groups", "{0 {1 2 3 4}}", {0, 1, 2}, "[0 {1 2} {3 4}]"),
        ("P4", "{0 1 2 [3 4 5]}", {0, 1, 3}, "{[{0 1} 3 4 5] 2}"),
        ("P4 all", "{0 {1 2}}", {0, 1}, "[0 1 2]"),
        ("P4 below", "[0 1 {2 3 {4 5}}]", {2, 4}, "[0 1 {[2 4 5] 3}]"),
        ("P5", "{0 1 {2 3 {4 5}}}", {0, 2, 4}, "{[0 2 4 5 3] 1}"),
        ("P5 no full", "{0 1 {2 3 {4 5}}}", {0, 4}, "{[0 4 5 {2 3}] 1}"),
        ("P5 no empty", "{0 1 {2 3 {4 5}}}", {0, 2, 3, 4}, "{[0 {2 3} 4 5] 1}"),
        ("P6", "{0 1 {2 3} {4 5}}", {1, 2, 4}, "{0 [3 2 1 4 5]}"),
        ("P6 no full", "{0 {1 2} {3 4}}", {1, 3}, "{0 [2 1 3 4]}"),
        ("P6 no empty", "{{0 1} {2 3}}", {0, 2}, "[1 0 2 3]"),
        ("Q1", "{0 1 [2 3 4]}", {1, 2, 3, 4}, "{0 {1 [2 3 4]}}"),
        ("Q1 root", "{0 1 [2 3 4]}", {2, 3, 4}, "{0 1 [2 3 4]}"),
        ("Q2", "{0 1 [2 3 4 5]}", {0, 2, 3}, "{[0 2 3 4 5] 1}"),
        ("Q2 other end", "{0 1 [2 3 4 5]}", {0, 4, 5}, "{[0 5 4 3 2] 1}"),
        ("Q2 partial", "{0 [1 {2 3} 4]}", {0, 1, 2}, "[0 1 2 3 4]"),
        ("Q2 partial last", "{0 [1 2 {3 4}]}", {0, 1, 2, 3}, "[0 1 2 3 4]"),
        ("Q2 no full", "{0 [{1 2} 3 4]}", {0, 2}, "[0 2 1 3 4]"),
        ("Q2 root", "[0 1 2 {3 4}]", {2, 4}, "[0 1 2 4 3]"),
        ("Q3", "[{0 1} 2 {3 4}]", {1, 2, 3}, "[0 1 2 3 4]"),
        ("Q3 no full", "[0 {1 2} {3 4} 5]", {2, 4}, "[0 1 2 4 3 5]"),
        ("Q3 full", "[0 1 2 3 4]", {1, 2, 3}, "[0 1 2 3 4]"),
        ("Q3 far in", "[0 1 {2 3} 4 {5 6} 7 8]", {3, 4, 5}, "[0 1 2 3 4 5 6 7 8]"),
        ("Q3 of Q", "[0 [1 2 3] [4 5 6] 7]", {3, 6}, "[0 1 2 3 6 5 4 7]"),
    ],
)
def test_template(template, before, subset, after):
    tree = tree_of(before)
    assert tree.reduce(subset)
    tree.check_structure()
    assert tree.canonical() == after
    assert plain.canonical(plain.reduce(plain.parse(before), subset)) == after


@pytest.mark.parametrize(
    ("before", "subset"),
    [
        ("{{0 1} {2 3} {4 5}}", {0, 2, 4}),  # three partial children
        ("{0 {{1 2} {3 4}}}", {0, 1, 3}),  # two, below the pertinent root
        ("[0 1 2 3]", {0, 2}),  # not consecutive
        ("[0 1 2 3 4]", {1, 3}),  # not at an end either: two blocks
        ("{0 [1 2 3]}", {0, 2}),  # no end is full
        ("{0 [1 2 3]}", {0, 1, 3}),  # both ends are full, but not all between them
        ("{0 [1 {2 3} 4]}", {0, 2}),  # the partial child is not at an end
        ("{0 [1 {2 3} 4 5]}", {0, 1, 2, 4}),  # a partial child between full ones
        ("{0 [{1 2} 3 {4 5}]}", {0, 1, 3, 4}),  # two partial children below the root
        ("[0 {1 2} 3 4]", {0, 1, 3}),  # one partial child between full ones in the root
        ("[[0 1 2] 3 4]", {1, 3}),  # partial in its middle
        ("{[0 1 2 3 4 5] [6 7 8 9]}", {1, 2, 7, 8}),  # two unknown Q nodes
        ("{[0 1 2 3 4 5] 6 7}", {2, 3, 6}),  # one unknown Q node, and the root
    ],
)
def test_a_refused_subset_changes_nothing(before, subset):
    tree = tree_of(before)
    order = tree.frontier().tolist()
    assert not tree.reduce(subset)
    assert plain.reduce(plain.parse(before), subset) is None
    tree.check_structure()
    assert tree.canonical() == before
    assert tree.frontier().tolist() == order
    tree.reduce(plain.leaves(plain.parse(before))[:2])  # the tree still works
    tree.check_structure()


def all_subsets(n):
    sizes = range(n + 1)
    return [each for k in sizes for each in itertools.combinations(range(n), k)]


def check_all_families(n, most_listed):
    """Tries every subset on each reachable tree; returns the number of trees.

    So every family of subsets, in every order, is a path through these trees.
    """
    orders = plain.Permutations(n)
    keeping = {each: orders.consecutive(each) for each in all_subsets(n)}
    start = PQTree(n)
    known = {start.canonical(): (start, orders.all)}
    queue = [start.canonical()]
    for before in queue:
        tree, allowed = known[before]
        for subset, kept in keeping.items():
            after = tree.copy()
            accepted = after.reduce(subset)
            after.check_structure()
            assert accepted == (allowed & kept).any()
            if not accepted:
                assert after.canonical() == before
                continue
            assert after.num_orderings() == (allowed & kept).sum()
            if after.num_orderings() <= most_listed:
                listed = orders.of(after.orderings())
                np.testing.assert_array_equal(listed, allowed & kept)
            if after.canonical() not in known:
                known[after.canonical()] = (after, allowed & kept)
                queue.append(after.canonical())
    return len(known)


def number_of_trees(most_leaves):
    """The number of PQ-trees, by their number of labelled leaves.

    With P nodes of two children or more and Q nodes of three or more, the exponential
    generating function is T = x + (exp(T) - 1 - T) + T^3 (1 + T + T^2 + ...) / 2.
    """
    size = most_leaves + 1
    found = np.eye(1, size, 1)[0]
    for _ in range(most_leaves):
        power = found
        after = np.eye(1, size, 1)[0]
        for k in range(2, size):
            power = np.convolve(power, found)[:size]
            after = after + power * (1 / math.factorial(k) + (k > 2) / 2)
        found = after
    return [round(each * math.factorial(k)) for k, each in enumerate(found)]


@pytest.mark.parametrize("n", range(6))
def test_all_families_of_subsets(n):
    assert check_all_families(n, most_listed=120) == max(1, number_of_trees(5)[n])


@pytest.mark.slow
def test_all_families_of_subsets_of_six_leaves():
    assert check_all_families(6, most_listed=32) == number_of_trees(6)[6] == 16657


def test_plain_reductions_of_all_families():
    orders = plain.Permutations(5)
    keeping = {each: orders.consecutive(each) for each in all_subsets(5)}
    known = {plain.universal(5): orders.all}
    queue = list(known)
    for tree in queue:
        for subset, kept in keeping.items():
            after = plain.reduce(tree, subset)
            assert (after is not None) == (known[tree] & kept).any()
            if after is None:
                continue
            after = plain.parse(plain.canonical(after))
            if after not in known:
                known[after] = known[tree] & kept
                assert plain.count(after) == known[after].sum()
                listed = orders.of(plain.orderings(after))
                np.testing.assert_array_equal(listed, known[after])
                queue.append(after)
    assert len(known) == number_of_trees(5)[5] == 941


@pytest.mark.slow
@pytest.mark.parametrize("n", [6, 7, 8])
def test_random_families(n):
    orders = plain.Permutations(n)
    subsets = all_subsets(n)
    keeping = np.array([orders.consecutive(each) for each in subsets])
    draw = random.Random(n)
    for _ in range(100_000):
        tree = PQTree(n)
        allowed = orders.all
        for k in draw.choices(range(len(subsets)), k=draw.randint(2, 8)):
            accepted = tree.reduce(subsets[k])
            kept = allowed & keeping[k]
            count = np.count_nonzero(kept)
            assert accepted == (count > 0)
            if accepted:
                allowed = kept
                assert tree.num_orderings() == count
        tree.check_structure()
        assert allowed[orders.number[tuple(tree.frontier().tolist())]]
        if tree.num_orderings() <= 64:
            np.testing.assert_array_equal(orders.of(tree.orderings()), allowed)


@st.composite
def families(draw, most_leaves):
    """A number of leaves, and subsets: arbitrary ones, and intervals of a hidden
    order."""
    n = draw(st.integers(1, most_leaves))
    order = draw(st.permutations(range(n)))
    ends = st.tuples(st.integers(0, n), st.integers(0, n))
    interval = ends.map(lambda each: set(order[min(each) : max(each)]))
    arbitrary = st.sets(st.integers(0, n - 1))
    return n, draw(st.lists(interval | interval | arbitrary, max_size=12))


@given(families(14))
def test_the_compiled_reduction_is_the_plain_one(family):
    n, subsets = family
    tree, expected = PQTree(n), plain.universal(n)
    for subset in subsets:
        order = tree.frontier().tolist()
        after = plain.reduce(expected, subset)
        assert tree.reduce(subset) == (after is not None)
        tree.check_structure()
        if after is None:
            assert tree.frontier().tolist() == order
        else:
            expected = after
        assert tree.canonical() == plain.canonical(expected)
        assert tree.num_orderings() == plain.count(expected)


@given(families(9))
def test_the_order_of_accepted_subsets_does_not_matter(family):
    n, subsets = family
    tree = PQTree(n)
    accepted = [each for each in subsets if tree.reduce(each)]
    other = PQTree(n)
    assert all(other.reduce(each) for each in reversed(accepted))
    assert other.canonical() == tree.canonical()


def is_consecutive(order, subset):
    place = np.argsort(order)[list(subset)]
    return np.ptp(place) == len(subset) - 1


@pytest.mark.parametrize("longest", [3, 60, 3000])
def test_many_leaves(longest):
    n = 3000
    rng = np.random.default_rng(longest)
    hidden = rng.permutation(n)
    subsets = []
    for start, length in zip(
        rng.integers(0, n, 2000), rng.integers(1, longest, 2000), strict=True
    ):
        subsets.append(rng.permutation(hidden[start : start + length]))
    tree = PQTree(n)
    assert all(tree.reduce(each) for each in subsets)
    tree.check_structure()
    order = tree.frontier()
    assert all(is_consecutive(order, each) for each in subsets)
    before = tree.canonical()
    refused = [each for each in rng.integers(0, n, (500, 2)) if len({*each}) == 2]
    refused = [each for each in refused if not tree.copy().reduce(each)]
    assert refused
    assert not any(tree.reduce(each) for each in refused)
    assert tree.canonical() == before


def cycle(k):
    """M_I(k) of Tucker's (1972) five kinds of minimal matrices without the
    consecutive-ones property. Rows are subsets of the columns."""
    n = k + 2
    return n, [{i, (i + 1) % n} for i in range(n)]


def two_long_rows(k):
    n = k + 3
    path = [{i, i + 1} for i in range(k + 1)]
    extra = n - 1
    return n, [*path, {*range(k + 1), extra}, {*range(1, k + 2), extra}]  # M_II(k)


def long_row_inside(k):
    n = k + 3
    path = [{i, i + 1} for i in range(k + 1)]
    return n, [*path, {*range(1, k + 1), n - 1}]  # M_III(k)


TUCKER = [
    *(kind(k) for kind in (cycle, two_long_rows, long_row_inside) for k in range(1, 5)),
    (6, [{0, 1}, {2, 3}, {4, 5}, {1, 3, 5}]),  # M_IV
    (5, [{0, 1}, {0, 1, 2, 3}, {2, 3}, {0, 3, 4}]),  # M_V
]


@pytest.mark.parametrize(("n", "rows"), TUCKER)
def test_forbidden_matrices_lack_only_their_last_row(n, rows):
    orders = list(itertools.permutations(rows)) if len(rows) < 6 else [rows, rows[::-1]]
    orders += [rows[k:] + rows[:k] for k in range(len(rows))]
    for *others, last in orders:
        tree = PQTree(n)
        assert all(tree.reduce(each) for each in others)
        assert not tree.reduce(last)
        tree.check_structure()


@given(st.sampled_from(TUCKER), st.randoms(use_true_random=False))
def test_forbidden_matrices_among_others(matrix, draw):
    """With repeated and empty columns and more rows, still not all rows fit."""
    n, rows = matrix
    columns = [draw.randrange(n) for _ in range(4)]
    columns = [*range(n), *columns, -1]
    draw.shuffle(columns)
    rows = [[k for k, each in enumerate(columns) if each in row] for row in rows]
    rows += [draw.sample(range(len(columns)), 3) for _ in range(2)]
    draw.shuffle(rows)
    tree = PQTree(len(columns))
    assert not all([tree.reduce(each) for each in rows])


@pytest.mark.parametrize("n", [1, 2, 7, 30])
def test_interval_matrices_are_accepted(n):
    rng = np.random.default_rng(n)
    hidden = rng.permutation(n)
    ends = list(itertools.combinations(range(n + 1), 2))
    tree = PQTree(n)
    assert all(tree.reduce(hidden[slice(*each)]) for each in rng.permutation(ends))
    assert tree.num_orderings() == min(n, 2)
    assert tree.frontier().tolist() in (hidden.tolist(), hidden[::-1].tolist())


@njit
def order_by_pairs(n, step):
    tree = new_tree(n)
    accepted = 0
    pair = np.zeros(9, np.int32)
    for k in range(n):
        pair[0], pair[1] = k, (k + step) % n
        accepted += reduce(tree, pair, 2)
    return accepted, frontier(tree)


def test_compiled_functions_can_use_trees():
    accepted, order = order_by_pairs(7, 3)
    assert accepted == 6
    assert order.tolist() in ([2, 5, 1, 4, 0, 3, 6], [6, 3, 0, 4, 1, 5, 2])


def test_a_leaf_that_comes_again_counts_once_in_compiled_code():
    tree = new_tree(3)
    assert reduce(tree, np.array([2, 0, 2, 2, 0]), 5)
    assert frontier(tree).tolist() == [1, 2, 0]


def test_the_frontier_moves_only_what_must_move():
    tree = new_tree(6)
    assert reduce(tree, np.array([2, 4]), 2)
    assert frontier(tree).tolist() == [0, 1, 2, 4, 3, 5]
