"""The arrays of a smoothed bound (see `smooth_bound.bound`), and how they start."""

from typing import NamedTuple

import numpy as np
from numba import njit

# Columns of the arrays of a `SoftBound`. Rows keep together what is read together, and
# few arrays are quicker to hand over and to allocate than many. Unsigned numbers are
# quicker to index with: Numba need not ask whether they count from the end.
RUNG, CHAIN, GROUP, LEVEL = range(4)
TYPE, FIRST_RUNG, LONGEST, COLUMN = range(4)
TYPES, TYPE_SUM, IS_SUMMIT, HEIGHT = range(4)
TOTAL, FLOOR, CHAIN_FALL, PATH_FALL, CHAIN_VALUE = range(5)


class SoftBound(NamedTuple):
    """State for ``N`` nodes of ``T`` types in ``B`` instances; updated in place.

    A *pair* is a type of an instance that has nodes of it; there are up to ``P``. The
    nodes of a pair from which equally long chains start are a *rung*; the nodes of an
    instance from which equally long paths start are a *level*, and those of one type
    among them a *group*.

    Attributes:
        node: Of each node: its rung, the nodes on the longest chain from it, its group
            and its level.
        pair: Its type; its rung of chains of one node, after which come longer ones;
            its longest chain, as far as sums were added up since; and its column in
            what finds chains, counted from one, or 0 if it has one node only.
        waiting: Nodes of each rung that are not on the frontier yet.
        left: Nodes of each group that have not run.
        level: How many types have nodes there that have not run, and the sum of these
            types, which is the type itself if it is one; whether all higher levels of
            the instance have run; and the nodes on the longest path from there.
        sums: Of each type's chains, and of the paths: the sum over instances of the
            powers; the sum below which it is added up anew (what rounding has lost by
            then would soon count); by how much the chains' sum falls if the type runs,
            and by how much that of the paths; and by how much the chains would lower
            the soft bound, without their weight.
        is_stale: Whether that last number is to be computed anew.
        power: Power of each length.
        rise: By how much it is larger than that of the length before.
        weight: Weight of each type's chains, and of the path.
        squarings: The power is two to this.
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
    squarings: int


@njit(cache=True, nogil=True)
def measure(
    node_type: np.ndarray,
    consumer_start: np.ndarray,
    consumers: np.ndarray,
    instance_nodes: np.ndarray,
    num_types: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Finds the rungs, levels and groups of a graph of which nothing has run.

    Args:
        node_type: As in `FrontierState`, and so the next two.
        consumer_start: First reader of each node, and the end.
        consumers: Readers.
        instance_nodes: Number of nodes of each instance.
        num_types: How many types there are.

    Returns:
        ``node``, ``pair``, ``waiting``, ``left`` and ``level`` of `SoftBound`, all
        nodes waiting; and the longest path.
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
    # As `Reach.chains`, of one instance at a time, and for pairs of several nodes only.
    chains = np.empty((most_nodes, columns), np.int32)
    group_of = np.full((most_nodes + 1, most_pairs), -1, np.int32)
    num_groups = 0
    begin = 0
    first_pair = 0
    ground = 0  # below an instance's levels
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
            else:  # mostly one reader: its row is copied
                reader = consumers[first]
                height = node[reader, LEVEL] - ground
                for k in range(width):
                    chains[row, k] = chains[reader - begin, k]
            for e in range(first + 1, last):
                reader = consumers[e]
                height = max(height, node[reader, LEVEL] - ground)
                for k in range(width):
                    chains[row, k] = max(chains[row, k], chains[reader - begin, k])
            height += 1
            longest = max(longest, height)
            p = node[v, RUNG]  # its pair, until here
            chain = 1
            if pair[p, COLUMN] > 0:
                chain = chains[row, pair[p, COLUMN] - 1] + 1
                chains[row, pair[p, COLUMN] - 1] = chain
            pair[p, LONGEST] = max(pair[p, LONGEST], chain)
            rung = pair[p, FIRST_RUNG] + chain - 1
            waiting[rung] += 1
            group = group_of[height, p - first_pair]
            if group < first_group:  # of an earlier instance, or none
                group = num_groups
                group_of[height, p - first_pair] = group
                num_groups += 1
                level[ground + height, TYPES] += 1
                level[ground + height, TYPE_SUM] += node_type[v]
                level[ground + height, HEIGHT] = height
            left[group] += 1
            node[v, RUNG] = rung
            node[v, CHAIN] = chain
            node[v, GROUP] = group
            node[v, LEVEL] = ground + height
        level[ground + longest, IS_SUMMIT] = 1
        longest_path = max(longest_path, longest)
        ground += longest + 1
        first_pair += num_pairs[i]
        begin = end
    return node, pair, waiting, left, level[:ground], longest_path


@njit(cache=True, nogil=True)
def _find_pairs(node_type, instance_nodes, num_types):
    """Numbers the pairs, instance by instance; a node's stands in place of its rung.

    A pair has as many rungs as nodes, of which its longest chain may leave some unused.
    Returns the most columns of an instance, too.
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
            node[v, RUNG] = pair_of[t]
            count[pair_of[t]] += 1
            v += 1
        num_pairs[i] = total - first
    rung = 0
    most = 0
    p = 0
    for i in range(num_instances):
        columns = 0
        for _ in range(num_pairs[i]):
            pair[p, FIRST_RUNG] = rung
            rung += count[p]
            if count[p] > 1:
                columns += 1
                pair[p, COLUMN] = columns
            p += 1
        most = max(most, columns)
    return node, pair[:total], num_pairs, most
