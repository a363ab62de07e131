"""The cutting of batches into chunks."""

from itertools import combinations_with_replacement

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edbatch as eb


def cheapest(rows, sizes):
    """Cost of the best cut, by exhaustive search."""
    most = -(-rows // sizes.widths[0])
    return min(
        sum(cut) + len(cut) * sizes.chunk_overhead
        for count in range(1, most + 1)
        for cut in combinations_with_replacement(sizes.widths, count)
        if sum(cut) >= rows
    )


@pytest.mark.parametrize("overhead", [0, 1, 3, 10])
def test_the_cut_is_the_cheapest(overhead):
    sizes = eb.Sizes(widths=(2, 5, 8), chunk_overhead=overhead)
    for rows in range(1, 24):
        cut = sizes.cut(rows)
        assert sum(cut) + len(cut) * overhead == cheapest(rows, sizes)


@given(
    st.sets(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(1, 500),
    st.floats(0, 50),
)
def test_only_the_last_chunk_has_padding(widths, rows, overhead):
    cut = eb.Sizes(widths=tuple(widths), chunk_overhead=overhead).cut(rows)
    assert sum(cut[:-1]) < rows <= sum(cut)
    assert cut == sorted(cut, reverse=True)


def test_large_batches_use_the_widest_chunk_first():
    assert eb.Sizes().cut(100_000)[:190] == [512] * 190
