"""Evaluation of Q-learning tables during training."""

import numpy as np
import pytest
from random_graphs import build

from edbatch.policies import BoundWeights, Greedy
from edbatch.policies.fsm.encoding import encoding_id
from edbatch.policies.fsm.evaluator import Evaluator
from edbatch.policies.fsm.q_learning import new_table
from edbatch.schedule import lower_bound
from edbatch.schedule.examples import chain, tree


def evaluate(structure, cost=None):
    """Evaluates an empty table, which follows the greedy heuristic."""
    num_types = structure.num_types
    evaluator = Evaluator([structure], encoding_id("sort"), num_types, cost)
    return evaluator(new_table(num_types), BoundWeights(), 0)


@pytest.mark.parametrize("cost", [None, np.full(5, 0.3)])
@pytest.mark.parametrize("length", [0, 100, 200_000])
def test_one_batch_above_the_bound_does_not_meet_it(length, cost):
    graph = tree("(((a)b)c((a)c)b)d")
    n = graph.num_nodes
    operands = np.split(graph.operand_node, graph.operand_start[1:-1])
    longer = build(
        [*graph.node_type, *[4] * length],
        [*operands, *([k] for k in range(n - 1, n - 1 + length))],
        5,
    )
    assert Greedy().schedule(longer).num_batches == lower_bound(longer) + 1
    assert not evaluate(longer, cost).meets_bounds


@pytest.mark.parametrize("cost", [None, np.array([0.1, 0.7, 1e-3])])
def test_sums_that_differ_by_rounding_meet_the_bound(cost):
    assert evaluate(chain("abcacb" * 2000), cost).meets_bounds
