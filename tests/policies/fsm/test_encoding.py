import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import build
from schedule_oracles import Naive
from smoothed_bound_oracle import best_two, gains_of

from edbatch.envs import sample_dag_structure
from edbatch.errors import PolicyError
from edbatch.policies.fsm.encoding import (
    ENCODINGS,
    encoded,
    encoding_id,
    is_possible_encoding,
)
from edbatch.policies.smooth_bound.bound import advance, start_smoothed_bound
from edbatch.schedule import start_frontier

SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=80)


def frontier_with(sizes):
    """A state with `sizes[t]` frontier nodes of each type t."""
    types = [t for t, size in enumerate(sizes) for _ in range(size)]
    structure = build(types, [[] for _ in types], len(sizes))
    state = start_frontier(structure)
    weight = np.ones(len(sizes) + 1)
    return state, start_smoothed_bound(state, structure.instance_nodes, weight, 3)


def expected(encoding, sizes):
    """The encoding by its definition; `sizes` maps symbols to frontier node counts.

    In one instance without edges, all types have the same marginal gain.
    """
    present = sorted(symbol for symbol, size in sizes.items() if size)
    if encoding == "fall":
        return present[:2]
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
    state, smooth = frontier_with(sizes)
    found = [encoded(each, state, smooth) for each in ("base", "max", "sort")]
    assert found == [base, most, sort]


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(sizes=SIZES, random=st.randoms(use_true_random=False))
def test_symbols_decide_ties_whatever_the_order_of_the_types(encoding, sizes, random):
    symbols = list(range(len(sizes) + 2))  # two of them have no type
    random.shuffle(symbols)
    type_of = np.full(len(symbols), -1, np.int32)
    type_of[symbols[: len(sizes)]] = range(len(sizes))
    found = encoded(encoding, *frontier_with(sizes), type_of)
    by_symbol = {symbols[t]: size for t, size in enumerate(sizes)}
    assert found == expected(encoding, by_symbol)
    assert is_possible_encoding(encoding, found) == bool(found)


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
    if encoding == "fall":  # any two types, in order of marginal gain
        possible = sequence and len(sequence) <= 2 and len({*sequence}) == len(sequence)
    assert is_possible_encoding(encoding, sequence) == bool(possible)


@given(
    st.integers(0, 10**6),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0, 3.0]), min_size=5, max_size=5),
    st.integers(1, 4),
    st.permutations(range(6)),
    st.randoms(use_true_random=False),
)
def test_fall_names_the_best_two_whatever_the_order_of_the_types(
    seed, weight, log2_p, symbols, random
):
    rng = np.random.default_rng(seed)
    structure = sample_dag_structure(rng, instances=3, nodes=8, types=4)
    type_of = np.full(6, -1, np.int32)  # two of the symbols have no type
    type_of[symbols[:4]] = range(4)
    graph = Naive(structure)
    state = start_frontier(structure)
    weight = np.array(weight)
    smooth = start_smoothed_bound(state, structure.instance_nodes, weight, log2_p)
    done: set[int] = set()
    while len(done) < graph.n:
        falls = gains_of(structure, done, weight, log2_p)
        found = encoded("fall", state, smooth, type_of)
        assert found == best_two({symbols[t]: fall for t, fall in falls.items()})
        assert is_possible_encoding("fall", found)
        chosen = random.choice(sorted(falls))
        done |= graph.frontier(done)[chosen]
        advance(smooth, state, chosen)
    assert encoded("fall", state, smooth, type_of) == []


def test_of_equals_the_lower_symbols_are_named():
    state, smooth = frontier_with([1, 1, 1, 1])
    type_of = np.array([3, -1, 2, 0, 1], np.int32)
    assert encoded("fall", state, smooth, type_of) == [0, 2]
    assert encoded("fall", state, smooth) == [0, 1]


def test_an_unknown_encoding():
    with pytest.raises(
        PolicyError,
        match=re.escape(
            "one of base, max, sort, fall but this is 'srot'; did you mean 'so"
        ),
    ):
        encoding_id("srot")
