"""Look-up of encoded frontiers: a hash table over sequences of symbols.

The sequences are stored one after the other; the slots of the hash table contain their
numbers. A look-up hashes the symbols and compares candidate sequences exactly. Space
O(total length); the dense trie that grows in training (`edbatch.policies.fsm.trie`) has
one entry per trie node and symbol, which is gigabytes for a policy with long frontiers.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel

NO_STATE = -1
# For hashes below 2³¹, so that products fit into 64 bits.
_FACTOR = 0x2545F491
_MASK = 2**31 - 1


class StateIndex(NamedTuple):
    """``S`` sequences, by number.

    Attributes:
        start: Where each sequence begins in `flat`, and where the last ends.
        flat: The symbols of all sequences.
        slot: Hash table of sequence numbers, each in the slot of its hash or a later
            one; `NO_STATE` in free slots. The number of slots is a power of two, more
            than twice the number of sequences.
    """

    start: np.ndarray  # [S + 1] int64
    flat: np.ndarray  # [symbols] int32
    slot: np.ndarray  # [slots] int32


def index_of(start: np.ndarray, flat: np.ndarray) -> StateIndex:
    """Builds an index of sequences.

    Args:
        start: Where each sequence begins, and where the last ends; ``[S + 1]``.
        flat: The symbols of all sequences; no two sequences are equal.

    Returns:
        The index.
    """
    count = len(start) - 1
    length = np.diff(start)
    found = np.zeros(count, np.int64)  # as in `find`, for all sequences at once
    for k in range(int(length.max(initial=0))):
        those = np.flatnonzero(length > k)
        symbols = flat[start[those] + k]
        found[those] = (found[those] * _FACTOR + symbols + 1) & _MASK
    found = ((found ^ (found >> 15)) * _FACTOR) & _MASK
    found ^= found >> 13
    slots = 1 << (2 * count).bit_length()
    slot = [NO_STATE] * slots
    for number, place in enumerate(found.tolist()):
        place &= slots - 1
        while slot[place] != NO_STATE:
            place = (place + 1) & (slots - 1)
        slot[place] = number
    return StateIndex(
        np.asarray(start, np.int64),
        np.asarray(flat, np.int32),
        np.array(slot, np.int32),
    )


def index_sequences(sequences: Sequence[Sequence[int]]) -> tuple[StateIndex, list[int]]:
    """Builds an index of sequences that may repeat.

    Args:
        sequences: The sequences.

    Returns:
        The index, and the number of each sequence in it.
    """
    numbers: dict[tuple[int, ...], int] = {}
    number = [numbers.setdefault(tuple(each), len(numbers)) for each in sequences]
    start = np.cumsum([0, *map(len, numbers)], dtype=np.int64)
    flat = np.fromiter((s for each in numbers for s in each), np.int32, start[-1])
    return index_of(start, flat), number


@kernel(counting=False)
def find(index: StateIndex, sequence: np.ndarray, length: int) -> int:
    """Looks up a sequence.

    Args:
        index: The `StateIndex`.
        sequence: The symbols; unknown ones are allowed.
        length: Length of the sequence; later symbols are ignored.

    Returns:
        The number of the sequence, or `NO_STATE`.
    """
    found = 0
    for k in range(length):
        found = (found * _FACTOR + int(sequence[k]) + 1) & _MASK
    found = ((found ^ (found >> 15)) * _FACTOR) & _MASK  # mixes bits into the lowest
    found ^= found >> 13
    last = len(index.slot) - 1
    place = found & last
    while index.slot[place] != NO_STATE:
        number = index.slot[place]
        start = index.start[number]
        k = 0
        if index.start[number + 1] - start == length:
            while k < length and index.flat[start + k] == sequence[k]:
                k += 1
            if k == length:
                return number
        place = (place + 1) & last
    return NO_STATE
