import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edbatch.policies.fsm.state_index import (
    NO_STATE,
    find,
    index_of,
    index_sequences,
)
from edbatch.policies.fsm.trie import insert, new_trie, sequences

SYMBOLS = 100
SEQUENCES = st.lists(
    st.lists(st.integers(0, SYMBOLS - 1), min_size=1, max_size=100, unique=True)
    | st.lists(st.integers(0, 2), min_size=1, max_size=4),
    max_size=30,
)


def array(sequence):
    return np.array(sequence, np.int32)


def index(trie):
    return index_of(*sequences(trie))


@given(SEQUENCES, SEQUENCES)
def test_a_trie_is_a_dictionary_of_sequences(known, others):
    trie = new_trie(SYMBOLS, 2)
    expected: dict[tuple[int, ...], int] = {}
    for sequence in known:
        number = expected.setdefault(tuple(sequence), len(expected))
        trie, found = insert(trie, array(sequence), len(sequence))
        assert found == number
    one, number = index_sequences(known)
    assert number == [expected[tuple(each)] for each in known]
    for sequence in known + others:
        for each in (one, index(trie)):
            found = find(each, array(sequence), len(sequence))
            assert found == expected.get(tuple(sequence), NO_STATE)
    start, flat = sequences(trie)
    listed = [tuple(each.tolist()) for each in np.split(flat, start[1:-1])]
    assert listed[: len(expected)] == list(expected)


def test_only_the_given_length_counts():
    trie, number = insert(new_trie(3), array([2, 1, 0]), 2)
    known = index(trie)
    assert find(known, array([2, 1, 2]), 2) == number == 0
    assert find(known, array([2, 1, 2]), 3) == NO_STATE
    assert find(known, array([2, 1]), 1) == NO_STATE
    assert find(known, array([2, 1]), 0) == NO_STATE


def test_growing_keeps_what_there_is():
    trie = new_trie(70)
    first = trie.child
    for k in range(70):
        trie, number = insert(trie, array(range(k, 70)), 70 - k)
        assert number == k
    assert trie.child is not first
    assert trie.used.tolist() == [1 + 70 * 71 // 2, 70]
    known = index(trie)
    assert all(find(known, array(range(k, 70)), 70 - k) == k for k in range(70))
