from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from random_graphs import build, graphs

from edbatch.policies import Greedy
from edbatch.schedule import Schedule, check_schedule
from edbatch.schedule.examples import tree

GRAPH = tree("((ab)cb)c")  # nodes 0 a, 1 b, 2 c, 3 b, 4 c
GOOD = Greedy().schedule(GRAPH)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_a_good_schedule_passes():
    assert GOOD.order.tolist() == [0, 1, 3, 2, 4]
    assert GOOD.batch_start.tolist() == [0, 1, 3, 4, 5]
    check_schedule(GOOD, GRAPH)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": ints(0, 1, 3, 2)}, "4 nodes are scheduled but the graph has 5"),
        ({"order": ints(0, 1, 3, 2, 4, 4)}, "6 nodes are scheduled"),
        ({"order": ints(0, 1, 3, 2, 2)}, "node 2 does not run exactly once"),
        ({"order": ints(0, 1, 3, 2, 5)}, "there is no node 5"),
        ({"order": ints(0, 1, 3, 2, -1)}, "there is no node -1"),
        ({"order": ints(0, 1, 2, 3, 4)}, "node 2 runs in a batch of its type"),
        ({"order": ints(0, 1, 3, 4, 2)}, "node 4 runs before its operand 2"),
        ({"batch_start": ints(1, 1, 3, 4, 5)}, "the first batch starts at position 0"),
        ({"batch_start": ints(0, 1, 3, 4, 4)}, "batches cover all positions"),
        ({"batch_start": ints(0, 3, 1, 4, 5)}, "batches cover all positions"),
        ({"batch_start": ints(0, 1, 3, 4, 6)}, "batches cover all positions"),
        ({"batch_start": ints(0, 1, 3, 5)}, "4 batches have 5 starts, .* there are 4"),
        ({"batch_start": ints()}, "4 batches have 5 starts, .* there are 0"),
        ({"batch_type": ints(0, 1, 2)}, "3 batches have 4 starts"),
        ({"batch_type": ints(0, 2, 1, 2)}, "node 1 runs in a batch of its type"),
        # Two nodes of one type in one batch, although one reads the other.
        (
            {"batch_start": ints(0, 1, 3, 5), "batch_type": ints(0, 1, 2)},
            "node 4 runs before its operand 2",
        ),
    ],
)
def test_a_broken_schedule_is_refused(change, message):
    with pytest.raises(AssertionError, match=message):
        check_schedule(replace(GOOD, **change), GRAPH)


def test_no_nodes_take_no_batches():
    graph = build([], [], 2)
    check_schedule(Schedule(ints(), ints(0), ints()), graph)
    with pytest.raises(AssertionError, match="batches cover all positions"):
        check_schedule(Schedule(ints(), ints(0, 0), ints(0)), graph)


@given(graphs(max_nodes=20))
def test_running_backwards_is_refused(structure):
    good = Greedy().schedule(structure)
    if not (structure.operand_node >= 0).any():
        return
    backwards = Schedule(
        good.order[::-1],
        structure.num_nodes - good.batch_start[::-1],
        good.batch_type[::-1],
    )
    with pytest.raises(AssertionError, match="runs before its operand"):
        check_schedule(backwards, structure)
