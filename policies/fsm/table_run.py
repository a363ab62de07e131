"""Compiled scheduling by a machine's table.

In a state never seen in training, a heuristic chooses: with the encoding `fall`, the
first type of the encoded frontier, otherwise the type with the largest greedy ratio.
The heads that the ratio needs are computed when the first such state occurs.
"""

from typing import NamedTuple

import numpy as np

from edbatch.graph.structure import GraphStructure
from edbatch.kernel import kernel
from edbatch.policies.fsm.encoding import FALL, best_two, encode
from edbatch.policies.fsm.state_index import NO_STATE, StateIndex, find
from edbatch.policies.smooth_bound.bound import (
    advance,
    new_smoothed_bound,
    no_smoothed_bound,
)
from edbatch.schedule.frontier import collect, compiled_frontier, run_type
from edbatch.schedule.sufficient_condition import (
    HeadState,
    best_ratio,
    new_heads,
    update_heads,
)

NO_TYPE = -1


class Binding(NamedTuple):
    """A machine of ``P`` types in terms of a graph's ``T`` types.

    Attributes:
        type_of: The graph's type for each of the machine's types, negative where the
            graph has none, then the graph's ``U`` types that the machine does not know.
        weight: Weights of the smoothed bound, see `BoundWeights.arrays`.
        log2_p: Base-2 logarithm of the smoothed bound's p.
    """

    type_of: np.ndarray  # [P + U] int32
    weight: np.ndarray  # [T + 1] float64
    log2_p: int


def run_table(
    structure: GraphStructure,
    kind: int,
    binding: Binding,
    index: StateIndex,
    action: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Schedules a graph by a table.

    Args:
        structure: The graph.
        kind: `encoding_id` of the encoding.
        binding: The graph's type of each symbol, and the weights of the smoothed bound.
        index: The encodings of the known states.
        action: The symbol to run in each known state.

    Returns:
        ``order``, ``batch_start`` and ``batch_type`` of the `Schedule`, and the number
        of steps in unknown states.
    """
    # One compiled call, because passing arrays takes longer than scheduling a small
    # minibatch; and one function per kind, so each is compiled only when needed.
    graph = structure.node_type, structure.operand_start, structure.operand_node
    num_types = len(binding.weight) - 1
    if kind == FALL:
        own = (*graph, structure.instance_nodes)
        return _run_by_gains(own, num_types, tuple(binding), (*index, action))
    return _run_by_sizes(graph, num_types, kind, binding.type_of, (*index, action))


@kernel
def _run_by_gains(graph, num_types, binding, table):
    node_type, operand_start, operand_node, instance_nodes = graph
    type_of, weight, log2_p = binding
    first, flat, slot, action = table
    state = compiled_frontier(node_type, operand_start, operand_node, num_types)
    smooth = new_smoothed_bound(state, instance_nodes, weight, log2_p)
    index = StateIndex(first, flat, slot)
    sequence = np.empty(len(type_of) + 1, np.int32)
    batches = np.empty((len(node_type), 3), np.int32)
    num_batches, unseen = _take_best(
        state, smooth, type_of, index, action, sequence, batches
    )
    order, start, batch_type = collect(state, batches, num_batches)
    return order, start, batch_type, unseen


@kernel(counting=False)
def _take_best(state, smooth, type_of, index, action, sequence, batches):
    """Fills ``batches``; returns their number and that of steps in unknown states."""
    unseen = 0
    num_batches = 0
    done = 0
    while done < len(state.node_type):
        length = best_two(state, smooth, type_of, sequence)
        chosen = _known_choice(state, index, action, type_of, sequence, length)
        if chosen < 0:
            unseen += 1
            chosen = type_of[sequence[0]]
        first, last = advance(smooth, state, chosen)
        batches[num_batches, 0] = chosen
        batches[num_batches, 1] = first
        batches[num_batches, 2] = last
        num_batches += 1
        done += last - first
    return num_batches, unseen


@kernel
def _run_by_sizes(graph, num_types, kind, type_of, table):
    node_type, operand_start, operand_node = graph
    first, flat, slot, action = table
    state = compiled_frontier(node_type, operand_start, operand_node, num_types)
    index = StateIndex(first, flat, slot)
    n = len(node_type)
    smooth = no_smoothed_bound()
    sequence = np.empty(len(type_of) + 1, np.int32)
    batches = np.empty((n, 3), np.int32)
    heads = HeadState(
        np.empty((0, 0), np.int32), np.empty(0, np.int32), np.empty(0, np.int32)
    )
    has_heads = False
    unseen = 0
    num_batches = 0
    done = 0
    while done < n:
        length = encode(kind, state, smooth, type_of, sequence)
        chosen = _known_choice(state, index, action, type_of, sequence, length)
        if chosen < 0:
            unseen += 1
            if not has_heads:
                heads = new_heads(state)
                has_heads = True
            chosen = best_ratio(heads, state)
        first, last = run_type(state, chosen)
        if has_heads:
            update_heads(heads, state, chosen, first, last)
        batches[num_batches, 0] = chosen
        batches[num_batches, 1] = first
        batches[num_batches, 2] = last
        num_batches += 1
        done += last - first
    order, start, batch_type = collect(state, batches, num_batches)
    return order, start, batch_type, unseen


@kernel(counting=False)
def _known_choice(state, index, action, type_of, sequence, length):
    """Returns the type to run on an encoded frontier; `NO_TYPE` if it is unknown."""
    found = find(index, sequence, length)
    chosen = NO_TYPE
    if found != NO_STATE and 0 <= action[found] < len(type_of):
        chosen = type_of[action[found]]
        # Only a damaged table names a type that is not on the frontier.
        if chosen >= 0 and state.tail[chosen] == state.head[chosen]:
            chosen = NO_TYPE
    return chosen
