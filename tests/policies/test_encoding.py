import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import build

from edbatch.errors import PolicyError
from edbatch.policies.encoding import ENCODINGS, encoded, encoding_id, may_encode
from edbatch.schedule import start_frontier

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=80)


def frontier_with(sizes):
    """A state with so many frontier nodes of each type."""
    types = [t for t, size in enumerate(sizes) for _ in range(size)]
    return start_frontier(build(types, [[] for _ in types], len(sizes)))


def expected(encoding, sizes):
    """By the definition; `sizes` maps symbols to numbers of frontier nodes."""
    present = sorted(symbol for symbol, size in sizes.items() if size)
    if encoding == "base" or not present:
        return present
    if encoding == "max":
        return [max(present, key=lambda symbol: (sizes[symbol], -symbol)), *present]
    return sorted(present, key=lambda symbol: (-sizes[symbol], symbol))


@pytest.mark.parametrize(
    ("sizes", "base", "most", "sort"),
    [
        ([3], [0], [0, 0], [0]),
        ([0, 2], [1], [1, 1], [1]),
        ([1, 2], [0, 1], [1, 0, 1], [1, 0]),
        ([2, 2], [0, 1], [0, 0, 1], [0, 1]),
        ([1, 0, 5, 2, 5], [0, 2, 3, 4], [2, 0, 2, 3, 4], [2, 4, 3, 0]),
        ([0, 0], [], [], []),
    ],
)
def test_encodings(sizes, base, most, sort):
    found = [encoded(each, frontier_with(sizes)) for each in ("base", "max", "sort")]
    assert found == [base, most, sort]


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(sizes=SIZES, random=st.randoms(use_true_random=False))
def test_symbols_decide_ties_whatever_the_order_of_the_types(encoding, sizes, random):
    symbols = list(range(len(sizes) + 2))  # two of them have no type
    random.shuffle(symbols)
    type_of = np.full(len(symbols), -1, np.int32)
    type_of[symbols[: len(sizes)]] = range(len(sizes))
    found = encoded(encoding, frontier_with(sizes), type_of)
    by_symbol = {symbols[t]: size for t, size in enumerate(sizes)}
    assert found == expected(encoding, by_symbol)
    assert may_encode(encoding, found) == bool(found)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(sequence=st.lists(st.integers(0, 3), max_size=4))
def test_may_encode_accepts_what_some_frontier_gives(encoding, sequence):
    def size(symbol):
        if symbol not in sequence:
            return 0
        if encoding == "sort":
            return 9 - sequence.index(symbol)
        return 2 if encoding == "max" and symbol == sequence[0] else 1

    sizes = {symbol: size(symbol) for symbol in range(4)}
    possible = bool(sequence) and expected(encoding, sizes) == sequence
    assert may_encode(encoding, sequence) == possible


def test_an_unknown_encoding():
    with pytest.raises(
        PolicyError,
        match=re.escape("one of base, max, sort but this is 'srot'; did you mean 'so"),
    ):
        encoding_id("srot")
