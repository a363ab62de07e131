"""Heuristic policies: depth, agenda, agenda-remaining and greedy.

Each is one compiled pass. *Depth* (TensorFlow Fold: Looks et al. 2017) runs all nodes
of one type at one depth together. *Agenda* (DyNet: Neubig, Goldberg, Dyer 2017) runs
the frontier type with the smallest mean depth over all nodes of the type, whether they
have run or not, so these means are computed once. *Agenda-remaining*, a variant, takes
the mean over the nodes that have not run. *Greedy* runs the type with the largest ratio
of the sufficient condition (ED-Batch). DyNet breaks ties by the order of a container;
here the type recorded first wins, so schedules are deterministic. DyNet counts depths
from 1, which makes no difference.
"""

import numpy as np

from edbatch.graph.structure import GraphStructure
from edbatch.kernel import kernel
from edbatch.schedule.frontier import (
    FrontierState,
    collect,
    compiled_frontier,
    frontier_size,
    remaining_size,
    run_type,
)
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.policy import schedules_are_valid
from edbatch.schedule.schedule import Schedule
from edbatch.schedule.sufficient_condition import best_ratio, new_heads, update_heads


@schedules_are_valid
class Depth:
    """Runs all nodes of one type at one depth as a batch. Time O(N + E).

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> Depth().schedule(tree("((ab)cb)c")).num_batches
        4
    """

    name = "depth"

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"{type(self).__name__}()"

    @keyboard_interrupts()
    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph by depth, then type.

        Args:
            structure: The graph's structure.

        Returns:
            A valid schedule.
        """
        order, start, kind = _by_depth(
            structure.node_type, structure.depth, structure.num_types
        )
        return Schedule(order, start, kind, self.name)


@schedules_are_valid
class Agenda:
    """Runs the type with the smallest mean depth. Time O(N + E + ST).

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> Agenda().schedule(tree("((ab)cb)c")).num_batches
        4
    """

    name = "agenda"

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"{type(self).__name__}()"

    @keyboard_interrupts()
    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph by the mean depth of each type.

        Args:
            structure: The graph's structure.

        Returns:
            A valid schedule.
        """
        order, start, kind = _by_agenda(*_arrays(structure), structure.depth, False)
        return Schedule(order, start, kind, self.name)


@schedules_are_valid
class AgendaRemaining:
    """Runs the type with the least mean depth of remaining nodes. Time O(N + E + ST).

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((a)b(b)b)a")
        >>> Agenda().schedule(graph).num_batches
        5
        >>> AgendaRemaining().schedule(graph).num_batches
        4
    """

    name = "agenda-remaining"

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"{type(self).__name__}()"

    @keyboard_interrupts()
    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph by the mean depth of each type's remaining nodes.

        Args:
            structure: The graph's structure.

        Returns:
            A valid schedule.
        """
        order, start, kind = _by_agenda(*_arrays(structure), structure.depth, True)
        return Schedule(order, start, kind, self.name)


@schedules_are_valid
class Greedy:
    """Runs the type with the largest ratio of ready nodes to heads. Time O(T(N + E)).

    A head is a remaining node without remaining ancestors of its own type; see
    `edbatch.schedule.sufficient_condition`.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> Greedy().schedule(tree("((ab)cb)c")).num_batches
        4
    """

    name = "greedy"

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"{type(self).__name__}()"

    @keyboard_interrupts()
    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph greedily.

        Args:
            structure: The graph's structure.

        Returns:
            A valid schedule.
        """
        order, start, kind = _by_ratio(*_arrays(structure))
        return Schedule(order, start, kind, self.name)


def _arrays(
    structure: GraphStructure,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Returns the arguments of `compiled_frontier`."""
    return (
        structure.node_type,
        structure.operand_start,
        structure.operand_node,
        structure.num_types,
    )


@kernel
def _by_depth(node_type, depth, num_types):
    n = len(node_type)
    levels = np.int64(0)  # not a literal: Numba would compile the callees again
    for v in range(n):
        levels = max(levels, depth[v] + 1)
    # Two stable counting sorts, by type and then by depth.
    by_type = _counting_sort(np.arange(n).astype(np.int32), node_type, num_types)
    order = _counting_sort(by_type, depth, levels)
    start = np.zeros(n + 1, np.int32)
    kind = np.empty(n, np.int32)
    batches = 0
    for place in range(n):
        v = order[place]
        if place:
            u = order[place - 1]
            same = depth[u] == depth[v] and node_type[u] == node_type[v]
        else:
            same = False
        if not same:
            start[batches] = place
            kind[batches] = node_type[v]
            batches += 1
    start[batches] = n
    return order, start[: batches + 1].copy(), kind[:batches].copy()


@kernel
def _counting_sort(items, keys, num_keys):
    place = np.zeros(num_keys + 1, np.int32)
    for v in items:
        place[keys[v] + 1] += 1
    for k in range(num_keys):
        place[k + 1] += place[k]
    sorted_items = np.empty(len(items), np.int32)
    for v in items:
        sorted_items[place[keys[v]]] = v
        place[keys[v]] += 1
    return sorted_items


@kernel
def _by_agenda(node_type, operand_start, operand_node, num_types, depth, of_remaining):
    state = compiled_frontier(node_type, operand_start, operand_node, num_types)
    n = len(depth)
    depth_sum = np.zeros(num_types, np.int64)
    for v in range(n):
        depth_sum[state.node_type[v]] += depth[v]
    mean = np.empty(num_types)
    for t in range(num_types):
        mean[t] = depth_sum[t] / max(1, remaining_size(state, t))
    batches = np.empty((n, 3), np.int32)
    done = 0
    num_batches = 0
    while done < n:
        best = smallest_mean_depth(state, mean)
        first, last = run_type(state, best)
        if of_remaining:
            for place in range(first, last):
                depth_sum[best] -= depth[state.queue[place]]
            mean[best] = depth_sum[best] / max(1, remaining_size(state, best))
        batches[num_batches, 0] = best
        batches[num_batches, 1] = first
        batches[num_batches, 2] = last
        num_batches += 1
        done += last - first
    return collect(state, batches, num_batches)


def mean_depths(structure: GraphStructure) -> np.ndarray:
    """Returns the mean depth of each type's nodes, ``[T] float64``; 0 for no nodes."""
    count = np.bincount(structure.node_type, minlength=structure.num_types)
    depth_sum = np.zeros(structure.num_types, np.int64)
    np.add.at(depth_sum, structure.node_type, structure.depth)
    return depth_sum / np.maximum(1, count)


@kernel
def smallest_mean_depth(state: FrontierState, mean: np.ndarray) -> int:
    """Returns the frontier type with the smallest mean depth.

    Args:
        state: A `FrontierState`.
        mean: ``[T] float64``: the mean depth of each type.
    """
    best = -1
    best_mean = np.inf
    for t in range(len(mean)):
        if frontier_size(state, t) and mean[t] < best_mean:
            best, best_mean = t, mean[t]
    return best


@kernel
def _by_ratio(node_type, operand_start, operand_node, num_types):
    state = compiled_frontier(node_type, operand_start, operand_node, num_types)
    n = len(state.node_type)
    heads = new_heads(state)
    batches = np.empty((n, 3), np.int32)
    done = 0
    num_batches = 0
    while done < n:
        best = best_ratio(heads, state)
        first, last = run_type(state, best)
        update_heads(heads, state, best, first, last)
        batches[num_batches, 0] = best
        batches[num_batches, 1] = first
        batches[num_batches, 2] = last
        num_batches += 1
        done += last - first
    return collect(state, batches, num_batches)
