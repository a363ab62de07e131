"""Lays out the states of a state machine in its plot.

States are placed in columns, from left to right by the mean time at which they occur in
a schedule, because the moves between them are cyclic and define no layers. Within a
column, states are ordered by the mean position of their neighbours, weighted by the
moves (the barycentre method of Sugiyama, Tagawa, Toda 1981), in a few sweeps.
"""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from edbatch.plot.state_groups import StateGroups
from edbatch.policies import MachineTrace
from edbatch.policies.fsm.machine_trace import END

_COLUMNS_PER_ROW = 2.5
_SWEEPS = 8
_MAIN_SHARE = 0.8  # share of all moves that the main ones make up
_MAIN_PER_NODE = 1.5  # limit on the number of main moves
_MOVES_PER_NODE = 3  # number of moves that are drawn; rarer ones are only counted


@dataclass(frozen=True, eq=False)
class StateLayout:
    """Positions of the ``K`` nodes of a plot, and of the start and the end.

    Rows ``K`` and ``K + 1`` of `place` are the start and the end. `moves` refers to
    them by these numbers.

    Attributes:
        place: Column and row of each node; every other column is half a row lower.
        moves: Source, target and number of steps of each of ``M`` moves to another
            node, the most frequent first.
        is_main: Whether a move is the most frequent one into or out of a node, or one
            of the most frequent moves overall: those that make up four fifths of all
            steps of moves, but at most 1.5 per node.
        stays: Number of steps from each node to itself.
        rows: Number of rows.
        columns: Number of columns.
    """

    place: np.ndarray  # [K + 2, 2] float64
    moves: np.ndarray  # [M, 3] int64
    is_main: np.ndarray  # [M] bool
    stays: np.ndarray  # [K] int64
    rows: int
    columns: int

    @property
    def is_drawn(self) -> np.ndarray:
        """Main moves, and the most frequent others up to a limit; ``[M] bool``."""
        rank = np.arange(len(self.moves))
        return self.is_main | (rank < _MOVES_PER_NODE * len(self.stays))


def lay_out_states(trace: MachineTrace, groups: StateGroups) -> StateLayout:
    """Computes the positions of the nodes in a plot of a state machine.

    Args:
        trace: The steps of the machine.
        groups: The nodes.

    Returns:
        The layout.

    Example:
        >>> from edbatch.plot.state_groups import group_states
        >>> from edbatch.policies import StateMachine, trace_machine
        >>> from edbatch.schedule.examples import chain
        >>> graph = chain("aab")
        >>> trace = trace_machine(StateMachine(graph.type_keys, "base"), [graph])
        >>> layout = lay_out_states(trace, group_states(trace, 10))
        >>> layout.place.tolist(), layout.stays.tolist()
        ([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [2.0, 0.0]], [1, 0])
        >>> layout.moves.tolist()
        [[2, 0, 1], [0, 1, 1], [1, 3, 1]]
    """
    count = len(groups.members)
    rows = math.ceil(math.sqrt(count / _COLUMNS_PER_ROW)) if count > 3 else 1
    columns = -(-count // rows)
    moves, stays = _moves(trace, groups)
    order = np.argsort(_mean_time(trace, groups), kind="stable")
    place = np.zeros((count + 2, 2))
    for column, members in enumerate(np.array_split(order, columns)):
        place[members, 0] = column
        place[members, 1] = _spread(len(members), rows, column)
    middle = place[:count, 1].mean()
    place[count:] = [[-1, middle], [columns, middle]]
    for _ in range(_SWEEPS):
        _sort_columns(place, moves, count, rows, columns)
    return StateLayout(place, moves, _main_moves(moves, count), stays, rows, columns)


def _moves(trace: MachineTrace, groups: StateGroups) -> tuple[np.ndarray, np.ndarray]:
    """Counts the moves between nodes, start and end, and the steps that stay."""
    count = len(groups.members)
    steps: Counter[tuple[int, int]] = Counter()
    ends = np.flatnonzero(trace.next_frontier == END) + 1
    for path in np.split(groups.node[trace.frontier], ends[:-1]):
        steps.update(pairwise([count, *path.tolist(), count + 1]))
    moves = [
        (last, here, number)
        for (last, here), number in steps.most_common()
        if last != here
    ]
    stays = [steps[node, node] for node in range(count)]
    return np.array(moves, np.int64), np.array(stays, np.int64)


def _main_moves(moves: np.ndarray, count: int) -> np.ndarray:
    """Computes `StateLayout.is_main`; moves are sorted, the most frequent first."""
    before = np.cumsum(moves[:, 2]) - moves[:, 2]
    is_main = before < _MAIN_SHARE * moves[:, 2].sum()
    is_main[int(_MAIN_PER_NODE * count) :] = False
    for side in (0, 1):
        _, first = np.unique(moves[:, side], return_index=True)
        is_main[first] = True
    return is_main


def _mean_time(trace: MachineTrace, groups: StateGroups) -> np.ndarray:
    """Returns each node's mean time, from 0 (start of a schedule) to 1; [K] float64."""
    ends = np.flatnonzero(trace.next_frontier == END) + 1
    lengths = np.diff(ends, prepend=0)
    step = np.arange(len(trace.frontier)) - np.repeat(ends - lengths, lengths)
    when = step / np.repeat(lengths, lengths)
    return np.bincount(groups.node[trace.frontier], weights=when) / groups.visits


def _spread(members: int, rows: int, column: int) -> np.ndarray:
    """Returns the rows of the states of one column, vertically centred."""
    lower = 0.5 * (column % 2) if rows > 1 else 0.0
    return np.arange(members) + (rows - members) / 2 + lower


def _sort_columns(
    place: np.ndarray, moves: np.ndarray, count: int, rows: int, columns: int
) -> None:
    """Sorts each column by its states' mean neighbour row; updates rows in place."""
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
