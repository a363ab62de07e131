"""Policies for serving: heuristics, a learned rule, its training and comparison.

In simulation, the learned rule's p99 is 6 to 31% below that of the best heuristic at
eleven of twelve loads (`edbatch compare --serving`). On two real cores, a server
without a policy, which runs all pending nodes, is even better
(docs/results-serving.md).
"""

from edbatch.policies.serving.comparison import (
    ServingScore,
    capacity,
    compare_serving,
    score,
)
from edbatch.policies.serving.costs import affine_costs, batch_costs
from edbatch.policies.serving.file import load_serving_policy
from edbatch.policies.serving.heuristics import ServingHeuristic, serving_heuristics
from edbatch.policies.serving.machine import ServingMachine
from edbatch.policies.serving.machine_training import train_serving_machine
from edbatch.policies.serving.objective import Objective
from edbatch.policies.serving.record import ServingRecord
from edbatch.policies.serving.rule import ServingRule
from edbatch.policies.serving.trace import Trace, draw_trace, serve
from edbatch.policies.serving.training import train_serving_policy

__all__ = [
    "Objective",
    "ServingHeuristic",
    "ServingMachine",
    "ServingRecord",
    "ServingRule",
    "ServingScore",
    "Trace",
    "affine_costs",
    "batch_costs",
    "capacity",
    "compare_serving",
    "draw_trace",
    "load_serving_policy",
    "score",
    "serve",
    "serving_heuristics",
    "train_serving_machine",
    "train_serving_policy",
]
