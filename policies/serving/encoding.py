"""Compiled encodings of a server's state as one number, for serving state machines.

- `leaders`: the type with the most waiting nodes, the type with the oldest request, and
  the type with the best ratio of waiting nodes to heads. These are the types that the
  heuristics largest, oldest and greedy would run, so each of these heuristics is a
  machine over these states, whatever the number of types.
- `widths`: the width of each type's batch.
- `sets`: the set of waiting types, and the age of the oldest request.

All include the number of requests in flight and of batches in the wave. Numbers and
times enter as logarithms. A state fits into 53 bits, so that it can be stored with
weights in an array of floats.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel
from edbatch.schedule.serving.kernels import View

LEADERS, WIDTHS, SETS = range(3)
ENCODINGS = ("leaders", "widths", "sets")
# Maximum number of types that each encoding distinguishes.
MOST_TYPES = (4095, 14, 38)

_LOAD_BITS, _WAVE_BITS, _AGE_BITS = 4, 3, 3
# Bits of each number after load and wave.
_BITS = (12, 3, 1)


class MachineState(NamedTuple):
    """An unpacked encoded state.

    Attributes:
        load: log2 of one more than the requests in flight, rounded down.
        batches: 0 if the wave has no batches yet, otherwise one more than the log2 of
            their number, rounded down.
        sees: `leaders`: the types of the three leaders. `widths`: for each type 0, or
            one more than half of the log2 of its waiting nodes, rounded down. `sets`:
            twice the log2 of one more than the age of the oldest request, in units of
            time, rounded down; and for each type whether it has a waiting node.
    """

    load: int
    batches: int
    sees: tuple[int, ...]


@kernel
def encode(
    encoding: int, scale_ms: float, view: View, in_flight: int, batches: int
) -> int:
    """Encodes a state.

    Args:
        encoding: `LEADERS`, `WIDTHS` or `SETS`.
        scale_ms: The unit of time.
        view: The waiting nodes; there is at least one.
        in_flight: Requests in flight.
        batches: Batches of the current wave so far.

    Returns:
        A number from 0 to 2⁵³ − 1.
    """
    code = min(2**_LOAD_BITS - 1, int(np.log2(1.0 + in_flight)))
    wave = 0 if batches == 0 else 1 + int(np.log2(float(batches)))
    code = code * 2**_WAVE_BITS + min(2**_WAVE_BITS - 1, wave)
    if encoding == LEADERS:
        for each in leaders(view):
            code = code * 2**12 + each
    elif encoding == WIDTHS:
        for t in range(min(len(view.waiting), 14)):
            code = code * 8 + _width_bucket(view.waiting[t])
    else:
        age = int(2.0 * np.log2(1.0 + view.oldest_ms.max() / scale_ms))
        code = code * 2**_AGE_BITS + min(2**_AGE_BITS - 1, age)
        for t in range(min(len(view.waiting), 38)):
            code = code * 2 + (view.waiting[t] > 0)
    return code


@kernel
def leaders(view: View) -> tuple[int, int, int]:
    """Returns the widest type, the oldest type and the type with the best ratio.

    Ties go to the first type.
    """
    widest, oldest, best = -1, -1, -1
    best_ratio = -1.0
    for t in range(len(view.waiting)):
        waiting = view.waiting[t]
        if waiting == 0:
            continue
        if widest < 0 or waiting > view.waiting[widest]:
            widest = t
        if oldest < 0 or view.oldest_ms[t] > view.oldest_ms[oldest]:
            oldest = t
        # As in a rule: the share of the remaining nodes if heads are not counted.
        among = view.heads[t] if view.heads[t] else max(waiting, view.remaining[t])
        if waiting / among > best_ratio:
            best, best_ratio = t, waiting / among
    return min(widest, 4095), min(oldest, 4095), min(best, 4095)


@kernel
def _width_bucket(waiting):
    """Bucket of a number of nodes: 0, then up to 3, 15, 63 and 255, and more."""
    if waiting == 0:
        return 0
    return min(5, 1 + int(np.log2(float(waiting))) // 2)


def pack(encoding: str, state: MachineState) -> int:
    """Packs a state into a number, as `encode` does."""
    kind = ENCODINGS.index(encoding)
    code = state.load * 2**_WAVE_BITS + state.batches
    for k, each in enumerate(state.sees):
        bits = _AGE_BITS if kind == SETS and k == 0 else _BITS[kind]
        code = code * 2**bits + each
    return code


def unpack(encoding: str, num_types: int, code: int) -> MachineState:
    """Unpacks a number that `encode` returned."""
    kind = ENCODINGS.index(encoding)
    bits = [_BITS[kind]] * min(num_types, MOST_TYPES[kind])
    if kind == LEADERS:
        bits = [_BITS[kind]] * 3
    elif kind == SETS:
        bits = [_AGE_BITS, *bits]
    sees = []
    for width in reversed(bits):
        code, each = divmod(code, 2**width)
        sees.append(each)
    load, batches = divmod(code, 2**_WAVE_BITS)
    return MachineState(load, batches, tuple(reversed(sees)))


def is_state(encoding: str, num_types: int, state: MachineState) -> bool:
    """Returns whether a state is possible for an encoding."""
    if not all(0 <= each < 2**12 for each in (state.batches, *state.sees)):
        return False
    if not 0 <= state.load < 2**_LOAD_BITS:
        return False
    if encoding == ENCODINGS[LEADERS] and max(state.sees, default=0) >= num_types:
        return False
    code = pack(encoding, state)
    return code < 2**53 and unpack(encoding, num_types, code) == state


def renumber(
    encoding: str, state: MachineState, moved: Sequence[int], num_types: int
) -> MachineState | None:
    """Renumbers the types of a state.

    Args:
        encoding: Encoding of the state.
        state: The state.
        moved: The new number of each type, negative for a type that is gone.
        num_types: The new number of types.

    Returns:
        The state; None if it has types that are gone, or that the encoding does not
        distinguish.
    """
    kind = ENCODINGS.index(encoding)
    if kind == LEADERS:
        # The number after the last distinguished type stands for all later types.
        seen = moved[: MOST_TYPES[kind]]
        places = range(MOST_TYPES[kind])
        if any(each >= len(seen) or seen[each] not in places for each in state.sees):
            return None
        return state._replace(sees=tuple(moved[each] for each in state.sees))
    first = 1 if kind == SETS else 0
    of_types = [0] * min(num_types, MOST_TYPES[kind])
    for old, each in enumerate(state.sees[first:]):
        if each and not 0 <= moved[old] < len(of_types):
            return None
        if each:
            of_types[moved[old]] = each
    return state._replace(sees=(*state.sees[:first], *of_types))
