"""Groups the states of a state machine for its plot."""

from dataclasses import dataclass

import numpy as np

from edbatch.policies import MachineTrace

# Maximum number of groups of rarer states; the last one may combine several types.
_GROUPS = 6
MANY_TYPES = -1


@dataclass(frozen=True, eq=False)
class StateGroups:
    """``K`` nodes of a plot of ``F`` states: single states, then groups.

    Attributes:
        node: The node that shows each state.
        state: The state of each node; the most visited state of a group.
        members: Number of states of each node, 1 for a single state.
        runs: Type that runs in each node, or the most frequent type if the greedy
            heuristic chooses; `MANY_TYPES` for a group with several types.
        visits: Number of steps in each node.
        is_known: Whether some state of the node is in the machine's table.
    """

    node: np.ndarray  # [F] int64
    state: np.ndarray  # [K] int64
    members: np.ndarray  # [K] int64
    runs: np.ndarray  # [K] int64
    visits: np.ndarray  # [K] int64
    is_known: np.ndarray  # [K] bool


def group_states(trace: MachineTrace, max_states: int) -> StateGroups:
    """Groups all but the most visited states by the type that runs in them.

    Args:
        trace: The steps of the machine.
        max_states: Number of most visited states that are not grouped.

    Returns:
        The nodes; a group of one state counts as a single state.

    Example:
        >>> from edbatch.policies import StateMachine, trace_machine
        >>> from edbatch.schedule.examples import chain
        >>> graph = chain("aaabbccc")
        >>> trace = trace_machine(StateMachine(graph.type_keys, "base"), [graph])
        >>> groups = group_states(trace, 1)
        >>> [trace.types[t].cell for t in groups.runs], groups.members.tolist()
        (['a', 'c', 'b'], [1, 1, 1])
    """
    states = len(trace.frontiers)
    runs = most_frequent_action(trace)
    if states <= max_states + 1:
        return _nodes(trace, runs, np.arange(states))
    rest = np.arange(max_states, states)
    weight = np.bincount(runs[rest], trace.visits[rest])
    ranked = np.argsort(-weight, kind="stable")
    group_of = np.full(len(weight), len(ranked))
    order = ranked[weight[ranked] > 0]
    group_of[order] = np.arange(len(order))
    if len(order) > _GROUPS:
        group_of[order[_GROUPS - 1 :]] = _GROUPS - 1
    node = np.arange(states)
    node[rest] = max_states + group_of[runs[rest]]
    return _nodes(trace, runs, node)


def _nodes(trace: MachineTrace, runs: np.ndarray, node: np.ndarray) -> StateGroups:
    """Puts groups of one state before the others, and computes the attributes."""
    alone = np.bincount(node) == 1
    number = np.empty(len(alone), np.int64)
    number[np.argsort(~alone, kind="stable")] = np.arange(len(alone))
    node = number[node]
    found = np.full(len(alone), MANY_TYPES)
    for k in range(len(alone)):
        [*types] = {*runs[node == k].tolist()}
        found[k] = types[0] if len(types) == 1 else MANY_TYPES
    return StateGroups(
        node=node,
        state=np.unique(node, return_index=True)[1],
        members=np.bincount(node),
        runs=found,
        visits=np.bincount(node, trace.visits).astype(np.int64),
        is_known=np.bincount(node, trace.is_known) > 0,
    )


def most_frequent_action(trace: MachineTrace) -> np.ndarray:
    """Returns the type that ran most often in each state; ``[F] int64``.

    In a state of the table the type is always the same. In other states the greedy
    heuristic chooses, based on more than the state.
    """
    ran = np.zeros((len(trace.frontiers), len(trace.types)), np.int64)
    np.add.at(ran, (trace.frontier, trace.action), 1)
    return ran.argmax(axis=1)
