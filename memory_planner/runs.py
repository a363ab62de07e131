"""Runs: sequences of nodes of one batch whose order is decided.

A sequence of nodes that is to be a slice makes each node the direct successor of the
previous one. Successors join nodes into *runs*, whose relative order stays open. Where
a sequence crosses from one block to the next, it makes one node the last of its batch
and the following node the first of its batch.

A sequence is accepted or refused as a whole, in time linear in its length: the two ends
of a run refer to each other, which is enough to detect a cycle.

In the table of nodes, `END` is the other end of a node's run, valid only at the two
ends of the run; `LENGTH` is the length of the run, valid only at its first node.
"""

import numpy as np

from edbatch.kernel import kernel
from edbatch.memory_planner.tables import (
    AFTER,
    BATCH,
    BEFORE,
    END,
    FIRST_NODE,
    LAST_NODE,
    LENGTH,
    NEXT,
    NONE,
    START,
)

# Columns of a change, for undoing it: index of the link in the sequence; and the first
# and last node of the run that it made, or `_BORDER` and flags of what has been set.
_LINK, _HEAD, _TAIL = range(3)
CHANGE_COLUMNS = 3
_BORDER = -1
_SET_LAST, _SET_FIRST = 1, 2


@kernel
def cut_runs(node: np.ndarray) -> None:
    """Makes each node a run of its own."""
    for v in range(len(node)):
        node[v, AFTER] = NONE
        node[v, BEFORE] = NONE
        node[v, END] = v
        node[v, LENGTH] = 1


@kernel
def link_sequence(
    batch: np.ndarray,
    node: np.ndarray,
    sequence: np.ndarray,
    change: np.ndarray,
) -> bool:
    """Makes a sequence of nodes a slice, if earlier decisions allow it.

    Args:
        batch: Table of batches; unchanged if the sequence is refused.
        node: Table of nodes; unchanged if the sequence is refused.
        sequence: The nodes.
        change: Scratch, ``[length of the sequence or more, 3] int32``.

    Returns:
        Whether the sequence was accepted.
    """
    if _link_free(batch, node, sequence):
        return True
    changes = 0
    for k in range(len(sequence) - 1):
        u, v = sequence[k], sequence[k + 1]
        a, b = node[u, BATCH], node[v, BATCH]
        if a == b:
            if node[u, AFTER] == v:
                continue
            fits = _join(batch, node, a, u, v, change[changes])
        else:
            if batch[a, LAST_NODE] == u and batch[b, FIRST_NODE] == v:
                continue
            fits = _border(batch, node, a, b, u, v, change[changes])
        if not fits:
            _undo(batch, node, sequence, change[:changes])
            return False
        change[changes, _LINK] = k
        changes += 1
    return True


@kernel
def _link_free(batch, node, sequence):
    """Joins nodes about which nothing is decided; False, unchanged, for other nodes.

    Most sequences are of this kind, 61 to 100% in the ready-made taggers and parsers;
    they need no look-ups and no record of changes.
    """
    first = sequence[0]
    a = node[first, BATCH]
    if batch[a, FIRST_NODE] != NONE or batch[a, LAST_NODE] != NONE:
        return False
    for v in sequence:
        is_free = node[v, AFTER] == NONE and node[v, BEFORE] == NONE
        if node[v, BATCH] != a or not is_free:
            return False
    u = first
    for k in range(1, len(sequence)):
        v = sequence[k]
        if v == first or node[v, BEFORE] != NONE:  # v occurs twice
            for j in range(1, k):
                node[sequence[j - 1], AFTER] = NONE
                node[sequence[j], BEFORE] = NONE
            return False
        node[u, AFTER] = v
        node[v, BEFORE] = u
        u = v
    node[first, END] = u
    node[u, END] = first
    node[first, LENGTH] = len(sequence)
    return True


@kernel
def _join(batch, node, a, u, v, change):
    """Makes v the successor of u in batch a; returns False, unchanged, if it cannot."""
    if node[u, AFTER] != NONE or node[v, BEFORE] != NONE:
        return False
    head, tail = node[u, END], node[v, END]
    if head == v or batch[a, LAST_NODE] == u or batch[a, FIRST_NODE] == v:
        return False
    length = node[head, LENGTH] + node[v, LENGTH]
    rest = batch[a + 1, START] - batch[a, START] - length
    if batch[a, FIRST_NODE] == head and batch[a, LAST_NODE] == tail and rest > 0:
        return False
    node[u, AFTER] = v
    node[v, BEFORE] = u
    node[head, END] = tail
    node[tail, END] = head
    node[head, LENGTH] = length
    change[_HEAD] = head
    change[_TAIL] = tail
    return True


@kernel
def _border(batch, node, a, b, u, v, change):
    """Makes u the last of batch a and v the first of batch b; False if it cannot."""
    if batch[a, NEXT] != b or node[u, AFTER] != NONE or node[v, BEFORE] != NONE:
        return False
    new = 0
    if batch[a, LAST_NODE] != u:
        head = node[u, END]
        rest = batch[a + 1, START] - batch[a, START] - node[head, LENGTH]
        if batch[a, LAST_NODE] != NONE or (batch[a, FIRST_NODE] == head and rest > 0):
            return False
        new |= _SET_LAST
    if batch[b, FIRST_NODE] != v:
        tail = node[v, END]
        rest = batch[b + 1, START] - batch[b, START] - node[v, LENGTH]
        if batch[b, FIRST_NODE] != NONE or (batch[b, LAST_NODE] == tail and rest > 0):
            return False
        new |= _SET_FIRST
    batch[a, LAST_NODE] = u
    batch[b, FIRST_NODE] = v
    change[_HEAD] = _BORDER
    change[_TAIL] = new
    return True


@kernel
def _undo(batch, node, sequence, change):
    for k in range(len(change) - 1, -1, -1):
        u, v = sequence[change[k, _LINK]], sequence[change[k, _LINK] + 1]
        head, tail = change[k, _HEAD], change[k, _TAIL]
        if head == _BORDER:
            if tail & _SET_LAST:
                batch[node[u, BATCH], LAST_NODE] = NONE
            if tail & _SET_FIRST:
                batch[node[v, BATCH], FIRST_NODE] = NONE
        else:
            node[u, AFTER] = NONE
            node[v, BEFORE] = NONE
            node[head, LENGTH] -= node[v, LENGTH]
            node[head, END] = u
            node[u, END] = head
            node[v, END] = tail
            node[tail, END] = v
