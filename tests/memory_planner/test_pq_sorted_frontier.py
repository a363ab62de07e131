"""`sorted_frontier`, compared with the canonical form and all orderings."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edbatch.memory_planner import PQTree
from edbatch.memory_planner.pq_reduction import new_tree, reduce
from edbatch.memory_planner.pq_sorted_frontier import sorted_frontier


def grow(num_leaves, subsets):
    tree, arrays = PQTree(num_leaves), new_tree(num_leaves)
    for subset in subsets:
        leaves = np.array(sorted(subset), np.int64)
        assert tree.reduce(leaves) == reduce(arrays, leaves, len(leaves))
    return tree, arrays


@given(
    st.integers(1, 7),
    st.lists(st.sets(st.integers(0, 6), min_size=1), max_size=8),
)
def test_it_is_the_ordering_of_the_canonical_form(num_leaves, subsets):
    subsets = [{leaf % num_leaves for leaf in subset} for subset in subsets]
    tree, arrays = grow(num_leaves, subsets)
    found = sorted_frontier(arrays).tolist()
    assert found == [int(leaf) for leaf in re.findall(r"\d+", tree.canonical())]
    assert tuple(found) in set(tree.orderings())


@given(st.integers(1, 40), st.data())
def test_it_is_that_of_the_numbers_if_it_may(num_leaves, data):
    ranges = data.draw(
        st.lists(st.tuples(*[st.integers(0, num_leaves - 1)] * 2).map(sorted))
    )
    _, arrays = grow(num_leaves, [set(range(a, b + 1)) for a, b in ranges])
    assert sorted_frontier(arrays).tolist() == list(range(num_leaves))
