import os
import subprocess
import sys

import numpy as np

from edbatch.policies.fsm.state_index import NO_STATE, find, index_sequences
from edbatch.policies.fsm.trie import empty_trie, new_trie


def array(sequence):
    return np.array(sequence, np.int32)


def test_unknown_symbols_are_in_no_sequence():
    known, _ = index_sequences([[1]])
    assert find(known, array([2]), 1) == NO_STATE
    assert find(known, array([1, 7]), 2) == NO_STATE


def test_sequences_of_one_place_are_told_apart():
    words = [[k, *range(1, k % 9)] for k in range(2000)]
    known, number = index_sequences(words)
    assert number == [*range(2000)]
    for k, each in enumerate(words):
        assert find(known, array(each), len(each)) == k
        assert find(known, array([*each, 0]), len(each) + 1) == NO_STATE


def test_space_is_that_of_the_sequences():
    words = [[*range(k, 1500), *range(k)] for k in range(300)]
    known, _ = index_sequences(words)
    assert sum(each.nbytes for each in known) <= 4 * 300 * 1500 + 8 * 301 + 4 * 2048


def test_tables_are_made_interpreted_and_without_a_compiler():
    words = [[1], [0, 1], [1, 0]]
    for one, other in zip(empty_trie(2), new_trie(2), strict=True):
        np.testing.assert_array_equal(one, other)
    known, numbers = index_sequences(words)
    assert [find(known, array(each), len(each)) for each in words] == numbers
    code = (
        "import numpy as np\n"
        "from edbatch.policies.fsm.state_index import find, index_sequences\n"
        "from edbatch.policies.fsm.trie import empty_trie\n"
        f"empty_trie(2); known, numbers = index_sequences({words})\n"
        f"found = [int(find(known, np.array(w), len(w))) for w in {words}]\n"
        "print(found if found == numbers else (found, numbers))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == f"{numbers}\n", found.stderr
