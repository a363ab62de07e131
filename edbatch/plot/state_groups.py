"""States of a machine that its picture shows, alone or as one group."""

from dataclasses import dataclass

import numpy as np

from edbatch.policies import MachineTrace

# Groups of rarer states; those of more types are one.
_GROUPS = 6
MANY_TYPES = -1


@dataclass(frozen=True, eq=False)
class StateGroups:
    """``K`` nodes of a picture of ``F`` states: states by themselves, then groups.

    Attributes:
        node: The node that shows each state.
        state: The state of a node by itself; of a group, its most visited one.
        members: Number of states of each node, 1 for a state by itself.
        runs: Type that runs in a node, the most frequent one where the greedy heuristic
            chooses; `MANY_TYPES` in a group of several.
        visits: Steps in each node.
        is_known: Whether a state of the node is in the machine's table.
    """

    node: np.ndarray  # [F] int64
    state: np.ndarray  # [K] int64
    members: np.ndarray  # [K] int64
    runs: np.ndarray  # [K] int64
    visits: np.ndarray  # [K] int64
    is_known: np.ndarray  # [K] bool


def group_states(trace: MachineTrace, max_states: int) -> StateGroups:
    """Groups the states beyond the most visited ones by the type that runs in them.

    Args:
        trace: The steps of the machine.
        max_states: How many states stand by themselves.

    Returns:
        The nodes; a group of one state is a state by itself.

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
    """Puts groups of one state before the others, and describes all nodes."""
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
    """The type that ran most often in each state; ``[F] int64``.

    In a state of the table it is always the same; elsewhere the greedy heuristic
    chooses, which sees more than the state.
    """
    ran = np.zeros((len(trace.frontiers), len(trace.types)), np.int64)
    np.add.at(ran, (trace.frontier, trace.action), 1)
    return ran.argmax(axis=1)
