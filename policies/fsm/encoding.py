"""Encodings of a frontier: the state that a finite state machine sees.

An encoding is a sequence of types (ED-Batch, Chen et al., ICML 2023, section 2.4):

- `base`: the types on the frontier, ascending.
- `max`: the type with most frontier nodes (the lowest in a tie), then as `base`.
- `sort`: the types on the frontier by number of nodes, most first, the lower type first
  in a tie.
- `fall`, new here: the type with the largest marginal gain, whose batch would lower the
  smoothed bound on the remaining batches most (`edbatch.policies.smooth_bound.bound`),
  and the runner-up. The first is a good choice by itself; a machine learns where to
  take the second.

Sequences are looked up exactly (`edbatch.policies.fsm.state_index`): two states are the
same only if their sequences are equal. Time O(T) for `base` and `max`; O(T + F²) for
`sort` with F types on the frontier; O(T) for `fall`. No allocation.

A policy has its own numbering of types. Its numbers, called *symbols* here, break ties,
so a machine trained on the recordings of one run makes the same choices on those of
another run, in which the types were met in another order.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edbatch.errors import PolicyError, nearest, shown
from edbatch.kernel import kernel
from edbatch.policies.smooth_bound.arrays import SmoothedBound
from edbatch.policies.smooth_bound.bound import marginal_gain, path_value
from edbatch.schedule.frontier import FrontierState

ENCODINGS = ("base", "max", "sort", "fall")
_BASE, _MAX, _SORT, FALL = range(4)

# Marginal gains that differ by less are equal up to rounding.
_EQUAL = 1e-9


def encoding_id(encoding: str) -> int:
    """Returns the number of an encoding in compiled code.

    Raises:
        PolicyError: There is no such encoding.

    Example:
        >>> encoding_id("sort")
        2
    """
    if encoding not in ENCODINGS:
        hint = nearest(str(encoding), ENCODINGS)
        raise PolicyError(
            f"an encoding is one of {', '.join(ENCODINGS)} but this is"
            f" {shown(encoding)}; {hint}"
        )
    return ENCODINGS.index(encoding)


def is_possible_encoding(encoding: str, sequence: Sequence[int]) -> bool:
    """Returns whether a sequence of symbols is the encoding of some frontier.

    Example:
        >>> is_possible_encoding("base", [0, 2]), is_possible_encoding("base", [2, 0])
        (True, False)
        >>> is_possible_encoding("max", [2, 0, 2]), is_possible_encoding("sort", [2, 0])
        (True, True)
    """
    present = list(sequence)
    if encoding_id(encoding) == FALL:
        return len(present) in (1, 2) and len({*present}) == len(present)
    if encoding_id(encoding) == _MAX:
        present = present[1:]
        if sequence and sequence[0] not in present:
            return False
    if encoding_id(encoding) == _SORT:
        present = sorted(present)
    return len(present) > 0 and all(a < b for a, b in pairwise(present))


@kernel
def encode(
    kind: int,
    state: FrontierState,
    smooth: SmoothedBound,
    type_of: np.ndarray,
    sequence: np.ndarray,
) -> int:
    """Encodes the frontier of an execution.

    Args:
        kind: `encoding_id` of the encoding.
        state: A `FrontierState`.
        smooth: The `SmoothedBound` of the remaining nodes; read for `fall` only.
        type_of: The graph's type of each symbol, negative where the graph has none.
        sequence: Receives the symbols; longer than the number of symbols.

    Returns:
        The length of the encoding.
    """
    if kind == FALL:
        return best_two(state, smooth, type_of, sequence)
    length = 0
    if kind == _MAX:
        length = 1  # its place is filled below
    most = 0
    for symbol in range(len(type_of)):
        t = type_of[symbol]
        if t < 0:
            continue
        size = state.tail[t] - state.head[t]
        if size == 0:
            continue
        place = length
        if kind == _SORT:
            while place > 0:
                u = type_of[sequence[place - 1]]
                if state.tail[u] - state.head[u] >= size:
                    break
                sequence[place] = sequence[place - 1]
                place -= 1
        sequence[place] = symbol
        length += 1
        if kind == _MAX and size > most:
            most = size
            sequence[0] = symbol
    return length if most or kind != _MAX else 0


@kernel(counting=False)
def best_two(
    state: FrontierState,
    smooth: SmoothedBound,
    type_of: np.ndarray,
    sequence: np.ndarray,
) -> int:
    """Finds the two types on the frontier that lower the smoothed bound most.

    This is `encode` for `fall`; callers that only need `fall` should call it directly,
    see `edbatch.kernel`.

    Args:
        state: A `FrontierState`.
        smooth: The `SmoothedBound` of the remaining nodes.
        type_of: The graph's type of each symbol, negative where the graph has none.
        sequence: Receives the symbols, the one with the largest gain first.

    Returns:
        The number of symbols: the number of types on the frontier, at most two.
    """
    paths = path_value(smooth)
    length = 0
    most = 0.0
    second = 0.0
    for symbol in range(len(type_of)):
        t = type_of[symbol]
        if t < 0 or state.tail[t] == state.head[t]:
            continue
        value = marginal_gain(smooth, t, paths)
        if length == 0 or value > most + _EQUAL:
            sequence[1] = sequence[0]
            second = most
            sequence[0] = symbol
            most = value
        elif length == 1 or value > second + _EQUAL:
            sequence[1] = symbol
            second = value
        length += 1
    return min(length, 2)


def encoded(
    encoding: str,
    state: FrontierState,
    smooth: SmoothedBound,
    type_of: np.ndarray | None = None,
) -> list[int]:
    """Encodes the frontier of an execution; for tests and displays.

    Args:
        encoding: One of `ENCODINGS`.
        state: The execution.
        smooth: Its `SmoothedBound`.
        type_of: As for `encode`; symbols are the graph's own types if None.

    Returns:
        The symbols.

    Example:
        >>> from edbatch.policies.smooth_bound.bound import start_smoothed_bound
        >>> from edbatch.schedule import start_frontier
        >>> from edbatch.schedule.examples import from_operands
        >>> graph = from_operands("abb", [[], [], []])
        >>> state = start_frontier(graph)
        >>> smooth = start_smoothed_bound(state, graph.instance_nodes, np.ones(3), 3)
        >>> [encoded(each, state, smooth) for each in ENCODINGS]
        [[0, 1], [1, 0, 1], [1, 0], [0, 1]]
    """
    if type_of is None:
        type_of = np.arange(len(state.head), dtype=np.int32)
    sequence = np.empty(len(type_of) + 1, np.int32)
    length = encode(encoding_id(encoding), state, smooth, type_of, sequence)
    return [int(each) for each in sequence[:length]]
