"""A trie over sequences of symbols, grown inside compiled code.

Children are stored in one dense array ``child[trie node, symbol]``, so that a look-up
reads one number per symbol and compares sequences exactly. The arrays double when they
are full. Space O(K P) for K trie nodes and P symbols. Only training uses it; policies,
whose states no longer change, use `edbatch.policies.fsm.state_index`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.policies.fsm.state_index import NO_STATE

_NO_CHILD = 0  # the root is no child


class Trie(NamedTuple):
    """Sequences over ``P`` symbols, numbered in the order of their insertion.

    Attributes:
        child: Child of each trie node by each symbol; 0 where there is none.
        number: Number of the sequence that ends at each trie node, or `NO_STATE`.
        used: Numbers of trie nodes and of sequences.
    """

    child: np.ndarray  # [capacity, P] int32
    number: np.ndarray  # [capacity] int32
    used: np.ndarray  # [2] int64


@kernel
def new_trie(num_symbols: int, capacity: int = 64) -> Trie:
    """Makes an empty trie.

    Args:
        num_symbols: Number of symbols, P.
        capacity: Initial capacity, in trie nodes.
    """
    return Trie(
        np.zeros((capacity, num_symbols), np.int32),
        np.full(capacity, NO_STATE, np.int32),
        np.array([1, 0]),
    )


@kernel
def insert(trie: Trie, sequence: np.ndarray, length: int) -> tuple[Trie, int]:
    """Looks up a sequence, and adds it if it is new.

    Args:
        trie: The `Trie`; its arrays are updated.
        sequence: The symbols, each below P.
        length: Length of the sequence; later symbols are ignored.

    Returns:
        The trie, in new arrays if it had to grow, and the number of the sequence.
    """
    if trie.used[0] + length > len(trie.number):
        trie = _grown(trie, 2 * len(trie.number) + length)
    node = 0
    for k in range(length):
        child = trie.child[node, sequence[k]]
        if child == _NO_CHILD:
            child = trie.used[0]
            trie.child[node, sequence[k]] = child
            trie.used[0] += 1
        node = child
    if trie.number[node] == NO_STATE:
        trie.number[node] = trie.used[1]
        trie.used[1] += 1
    return trie, trie.number[node]


@kernel
def _grown(trie, capacity):
    child = np.zeros((capacity, trie.child.shape[1]), np.int32)
    number = np.full(capacity, NO_STATE, np.int32)
    for node in range(trie.used[0]):
        number[node] = trie.number[node]
        for symbol in range(trie.child.shape[1]):
            child[node, symbol] = trie.child[node, symbol]
    return Trie(child, number, trie.used)


def empty_trie(num_symbols: int, capacity: int = 64) -> Trie:
    """Makes an empty trie in interpreted code, which is faster than compiling it.

    Args:
        num_symbols: As for `new_trie`.
        capacity: As for `new_trie`.
    """
    return _interpreted(new_trie)(num_symbols, capacity)


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(function, "py_func", function)  # no py_func if NUMBA_DISABLE_JIT=1


@kernel
def sequences(trie: Trie) -> tuple[np.ndarray, np.ndarray]:
    """Lists the sequences of a trie.

    Returns:
        Starts ``[S + 1]`` and concatenated symbols of the ``S`` sequences, by number.
    """
    parent = np.zeros(trie.used[0], np.int32)
    symbol = np.zeros(trie.used[0], np.int32)
    end = np.zeros(trie.used[1], np.int32)
    length = np.zeros(trie.used[0], np.int32)
    start = np.zeros(trie.used[1] + 1, np.int64)
    for node in range(trie.used[0]):  # children have larger numbers than parents
        if trie.number[node] != NO_STATE:
            end[trie.number[node]] = node
            start[trie.number[node] + 1] = length[node]
        for each in range(trie.child.shape[1]):
            child = trie.child[node, each]
            if child != _NO_CHILD:
                parent[child] = node
                symbol[child] = each
                length[child] = length[node] + 1
    for s in range(len(end)):
        start[s + 1] += start[s]
    flat = np.empty(start[-1], np.int32)
    for s in range(len(end)):
        node = end[s]
        for place in range(start[s + 1] - 1, start[s] - 1, -1):
            flat[place] = symbol[node]
            node = parent[node]
    return start, flat
