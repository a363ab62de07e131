import os
import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edbatch.policies.fsm.trie import (
    NO_STATE,
    find,
    insert,
    new_trie,
    sequences,
    trie_of,
)

SYMBOLS = 100
SEQUENCES = st.lists(
    st.lists(st.integers(0, SYMBOLS - 1), min_size=1, max_size=100, unique=True)
    | st.lists(st.integers(0, 2), min_size=1, max_size=4),
    max_size=30,
)


def array(sequence):
    return np.array(sequence, np.int32)


@given(SEQUENCES, SEQUENCES)
def test_a_trie_is_a_dictionary_of_sequences(known, others):
    trie = new_trie(SYMBOLS, 2)
    expected: dict[tuple[int, ...], int] = {}
    for sequence in known:
        number = expected.setdefault(tuple(sequence), len(expected))
        trie, found = insert(trie, array(sequence), len(sequence))
        assert found == number
    for sequence in known + others:
        found = find(trie, array(sequence), len(sequence))
        assert found == expected.get(tuple(sequence), NO_STATE)
    start, flat = sequences(trie)
    listed = [tuple(each.tolist()) for each in np.split(flat, start[1:-1])]
    assert listed[: len(expected)] == list(expected)


def test_only_the_given_length_counts():
    trie, number = insert(new_trie(3), array([2, 1, 0]), 2)
    assert find(trie, array([2, 1, 2]), 2) == number == 0
    assert find(trie, array([2, 1, 2]), 3) == NO_STATE
    assert find(trie, array([2, 1]), 1) == NO_STATE
    assert find(trie, array([2, 1]), 0) == NO_STATE


def test_unknown_symbols_are_in_no_sequence():
    trie, _ = insert(new_trie(2), array([1]), 1)
    assert find(trie, array([2]), 1) == NO_STATE
    assert find(trie, array([1, 7]), 2) == NO_STATE


def test_growing_keeps_what_there_is():
    trie = new_trie(70)
    first = trie.child
    for k in range(70):
        trie, number = insert(trie, array(range(k, 70)), 70 - k)
        assert number == k
    assert trie.child is not first
    assert trie.used.tolist() == [1 + 70 * 71 // 2, 70]
    assert all(find(trie, array(range(k, 70)), 70 - k) == k for k in range(70))


def test_tables_are_made_interpreted_and_without_a_compiler():
    words = [[1], [0, 1], [1, 0]]
    trie, numbers = trie_of(words, 2)
    assert [find(trie, array(each), len(each)) for each in words] == numbers
    code = (
        f"from edbatch.policies.fsm.trie import trie_of; print(trie_of({words}, 2)[1])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == f"{numbers}\n", found.stderr
