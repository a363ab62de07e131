"""Where the states of a machine stand in its picture.

States stand in columns, from left to right by when they occur in a schedule, because
the moves between them go round in circles and have no layers of their own. Inside a
column they are ordered by the mean position of their neighbours, weighted by the moves
(the barycentre method of Sugiyama, Tagawa, Toda 1981), in a few sweeps.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from edbatch.policies import MachineTrace
from edbatch.policies.fsm.machine_trace import END

_COLUMNS_PER_ROW = 2.5
_SWEEPS = 8


@dataclass(frozen=True, eq=False)
class StateLayout:
    """Places of the ``K`` most visited states, and of the start and the end.

    Rows ``K`` and ``K + 1`` of `place` are those of the start and the end, which moves
    refer to by these numbers.

    Attributes:
        place: Column and row of each; every other column is half a row lower.
        moves: From, to, number of steps, and 1 for a move that leads through states
            which are not placed, of each of ``M`` moves to another state.
        stays: Steps from each state to itself.
        rows: Number of rows.
        columns: Number of columns.
    """

    place: np.ndarray  # [K + 2, 2] float64
    moves: np.ndarray  # [M, 4] int64
    stays: np.ndarray  # [K] int64
    rows: int
    columns: int


def lay_out_states(trace: MachineTrace, max_states: int) -> StateLayout:
    """Places the most visited states of a machine.

    Example:
        >>> from edbatch.policies import StateMachine, trace_machine
        >>> from edbatch.schedule.examples import chain
        >>> graph = chain("aab")
        >>> trace = trace_machine(StateMachine(graph.type_keys, "base"), [graph])
        >>> layout = lay_out_states(trace, 10)
        >>> layout.place.tolist(), layout.stays.tolist()
        ([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]], [1, 0])
        >>> layout.moves.tolist()
        [[2, 0, 1, 0], [0, 1, 1, 0], [1, 3, 1, 0]]
    """
    count = min(max_states, len(trace.frontiers))
    rows = math.ceil(math.sqrt(count / _COLUMNS_PER_ROW)) if count > 3 else 1
    columns = -(-count // rows)
    moves, stays = _moves(trace, count)
    order = np.argsort(_mean_time(trace)[:count], kind="stable")
    place = np.zeros((count + 2, 2))
    for column, members in enumerate(np.array_split(order, columns)):
        place[members, 0] = column
        place[members, 1] = _spread(len(members), rows, column)
    middle = place[:count, 1].mean()
    place[count:] = [[-1, middle], [columns, middle]]
    for _ in range(_SWEEPS):
        _sort_columns(place, moves, count, rows, columns)
    return StateLayout(place, moves, stays, rows, columns)


def _moves(trace: MachineTrace, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts the moves between the first states, start and end, and the stays."""
    steps: Counter[tuple[int, int, bool]] = Counter()
    ends = np.flatnonzero(trace.next_frontier == END) + 1
    for path in np.split(trace.frontier, ends[:-1]):
        last, skipped = count, False
        for state in (*path.tolist(), END):
            if state >= count:
                skipped = True
                continue
            here = count + 1 if state == END else state
            steps[last, here, skipped] += 1
            last, skipped = here, False
    moves = [
        (last, here, number, skipped)
        for (last, here, skipped), number in steps.items()
        if last != here
    ]
    stays = [steps[state, state, False] for state in range(count)]
    return np.array(moves, np.int64), np.array(stays, np.int64)


def _mean_time(trace: MachineTrace) -> np.ndarray:
    """When each frontier occurs, from 0 (start of a schedule) to 1; [F] float64."""
    ends = np.flatnonzero(trace.next_frontier == END) + 1
    lengths = np.diff(ends, prepend=0)
    step = np.arange(len(trace.frontier)) - np.repeat(ends - lengths, lengths)
    when = step / np.repeat(lengths, lengths)
    return np.bincount(trace.frontier, weights=when) / trace.visits


def _spread(members: int, rows: int, column: int) -> np.ndarray:
    """Rows for the states of one column, in the middle of it."""
    lower = 0.5 * (column % 2) if rows > 1 else 0.0
    return np.arange(members) + (rows - members) / 2 + lower


def _sort_columns(
    place: np.ndarray, moves: np.ndarray, count: int, rows: int, columns: int
) -> None:
    """Orders each column by the mean row of its states' neighbours; updates rows."""
    for column in range(columns):
        members = np.flatnonzero(place[:count, 0] == column)
        pull = []
        for state in members:
            out, into = moves[:, 0] == state, moves[:, 1] == state
            near = np.concatenate([moves[out, 1], moves[into, 0]])
            weight = np.sqrt(np.concatenate([moves[out, 2], moves[into, 2]]))
            other = place[near, 0] != column
            near, weight = near[other], weight[other]
            mean = (place[near, 1] @ weight) / weight.sum() if len(near) else 0.0
            pull.append(mean if len(near) else place[state, 1])
        ranked = members[np.argsort(pull, kind="stable")]
        place[ranked, 1] = _spread(len(members), rows, column)
