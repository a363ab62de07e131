"""Arrays of a smoothed bound (see `smooth_bound.bound`) and their initial values."""

from typing import NamedTuple

import numpy as np

from edbatch.kernel import kernel

# Columns of the arrays of a `SmoothedBound`. A row holds values that are read together;
# few arrays are faster to pass and to allocate than many. Numba indexes faster with
# unsigned integers, which cannot be negative indices.
CHAIN_LEVEL, CHAIN, GROUP, PATH_LEVEL = range(4)
TYPE, FIRST_LEVEL, LONGEST, COLUMN = range(4)
TYPES, TYPE_SUM, IS_FRONT, HEIGHT = range(4)
TOTAL, FLOOR, CHAIN_GAIN, PATH_GAIN, CHAIN_VALUE = range(5)


class SmoothedBound(NamedTuple):
    """State for ``N`` nodes of ``T`` types in ``B`` instances; updated in place.

    A *pair* is an instance and a type of which it has nodes; there are ``P``. A *chain
    level* is the set of nodes of a pair from which chains of the same length start. A
    *path level* is the set of nodes of an instance from which paths of the same length
    start, and a *group* the nodes of one type in a path level.

    Attributes:
        node: Per node: its chain level, the length of the longest chain from it, its
            group and its path level.
        pair: Per pair: its type; its chain level of length one, which longer ones
            follow; its longest chain when sums were last recomputed; and its column in
            the chain table, from one, or 0 if the pair has only one node.
        waiting: Nodes of each chain level that are not on the frontier yet.
        left: Nodes of each group that have not run.
        level: Per path level: the number of types with nodes that have not run, and the
            sum of these types, which is the type itself if there is only one; whether
            this is the instance's critical-path front; and the longest path from there.
        sums: Per type, and for the paths: the sum of powers over instances; the
            threshold below which it is recomputed, against rounding; by how much
            running the type lowers the chains' sum, and the paths' sum; and the gain of
            the chains, unweighted.
        is_stale: Whether that gain has to be recomputed.
        power: Each length to the power of p.
        rise: Difference of each entry of `power` and the one before.
        weight: Weight of each type's chains, and of the path.
        log2_p: Base-2 logarithm of the norm's p.
    """

    node: np.ndarray  # [N, 4] uint32
    pair: np.ndarray  # [P, 4] uint32
    waiting: np.ndarray  # [N] int32
    left: np.ndarray  # [N] int32
    level: np.ndarray  # [sum of (longest path + 1), 4] uint32
    sums: np.ndarray  # [T + 1, 5] float64
    is_stale: np.ndarray  # [T] uint8
    power: np.ndarray  # [longest path + 1] float64
    rise: np.ndarray  # [longest path + 1] float64
    weight: np.ndarray  # [T + 1] float64
    log2_p: int


@kernel
def measure(
    node_type: np.ndarray,
    consumer_start: np.ndarray,
    consumers: np.ndarray,
    instance_nodes: np.ndarray,
    num_types: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Finds the levels and groups of a graph before its execution.

    Args:
        node_type: Type of each node, as in `FrontierState`.
        consumer_start: Index of each node's first reader, and the end, as there.
        consumers: Readers, as there.
        instance_nodes: Number of nodes of each instance.
        num_types: How many types there are.

    Returns:
        ``node``, ``pair``, ``waiting``, ``left`` and ``level`` of `SmoothedBound`, with
        all nodes waiting; and the length of the longest path.
    """
    n = len(node_type)
    node, pair, num_pairs, columns = _find_pairs(node_type, instance_nodes, num_types)
    waiting = np.zeros(n, np.int32)
    left = np.zeros(n, np.int32)
    level = np.zeros((n + len(instance_nodes), 4), np.uint32)
    most_nodes = 0
    most_pairs = 0
    for i in range(len(instance_nodes)):
        most_nodes = max(most_nodes, instance_nodes[i])
        most_pairs = max(most_pairs, num_pairs[i])
    # As `InstanceGraph.chains`, for one instance at a time and pairs of several nodes.
    chains = np.empty((most_nodes, columns), np.int32)
    group_of = np.full((most_nodes + 1, most_pairs), -1, np.int32)
    num_groups = 0
    begin = 0
    first_pair = 0
    ground = 0  # the row before an instance's first path level
    longest_path = 0
    for i in range(len(instance_nodes)):
        end = begin + instance_nodes[i]
        width = 0
        for p in range(first_pair, first_pair + num_pairs[i]):
            width = max(width, pair[p, COLUMN])
        longest = 0
        first_group = num_groups
        for v in range(end - 1, begin - 1, -1):
            height = 0
            row = v - begin
            first = consumer_start[v]
            last = consumer_start[v + 1]
            if first == last:
                for k in range(width):
                    chains[row, k] = 0
            else:  # there is usually one reader, whose row is copied
                reader = consumers[first]
                height = node[reader, PATH_LEVEL] - ground
                for k in range(width):
                    chains[row, k] = chains[reader - begin, k]
            for e in range(first + 1, last):
                reader = consumers[e]
                height = max(height, node[reader, PATH_LEVEL] - ground)
                for k in range(width):
                    chains[row, k] = max(chains[row, k], chains[reader - begin, k])
            height += 1
            longest = max(longest, height)
            p = node[v, CHAIN_LEVEL]  # until here, this holds the node's pair
            chain = 1
            if pair[p, COLUMN] > 0:
                chain = chains[row, pair[p, COLUMN] - 1] + 1
                chains[row, pair[p, COLUMN] - 1] = chain
            pair[p, LONGEST] = max(pair[p, LONGEST], chain)
            chain_level = pair[p, FIRST_LEVEL] + chain - 1
            waiting[chain_level] += 1
            group = group_of[height, p - first_pair]
            if group < first_group:  # of an earlier instance, or none
                group = num_groups
                group_of[height, p - first_pair] = group
                num_groups += 1
                level[ground + height, TYPES] += 1
                level[ground + height, TYPE_SUM] += node_type[v]
                level[ground + height, HEIGHT] = height
            left[group] += 1
            node[v, CHAIN_LEVEL] = chain_level
            node[v, CHAIN] = chain
            node[v, GROUP] = group
            node[v, PATH_LEVEL] = ground + height
        level[ground + longest, IS_FRONT] = 1
        longest_path = max(longest_path, longest)
        ground += longest + 1
        first_pair += num_pairs[i]
        begin = end
    return node, pair, waiting, left, level[:ground], longest_path


@kernel
def _find_pairs(node_type, instance_nodes, num_types):
    """Numbers the pairs, instance by instance; `CHAIN_LEVEL` holds a node's pair.

    A pair has as many levels as nodes; levels above its longest chain stay unused. Also
    returns the largest number of columns of an instance.
    """
    n = len(node_type)
    num_instances = len(instance_nodes)
    node = np.empty((n, 4), np.uint32)
    pair = np.zeros((min(n, num_instances * num_types), 4), np.uint32)
    num_pairs = np.zeros(num_instances, np.int32)
    pair_of = np.full(num_types, -1, np.int32)
    count = np.zeros(len(pair), np.int32)
    total = 0
    v = 0
    for i in range(num_instances):
        first = total
        for _ in range(instance_nodes[i]):
            t = node_type[v]
            if pair_of[t] < first:
                pair_of[t] = total
                pair[total, TYPE] = t
                total += 1
            node[v, CHAIN_LEVEL] = pair_of[t]
            count[pair_of[t]] += 1
            v += 1
        num_pairs[i] = total - first
    chain_level = 0
    most = 0
    p = 0
    for i in range(num_instances):
        columns = 0
        for _ in range(num_pairs[i]):
            pair[p, FIRST_LEVEL] = chain_level
            chain_level += count[p]
            if count[p] > 1:
                columns += 1
                pair[p, COLUMN] = columns
            p += 1
        most = max(most, columns)
    return node, pair[:total], num_pairs, most
