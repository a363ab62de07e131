"""Scheduling: from a graph to a sequence of batches.

Compiled by Numba, the greedy heuristic takes 0.035 to 0.057 µs per node of a minibatch,
a fifth to a third of the time to plan it (`experiments/planning_speed.py`,
docs/results.md).
"""

from edbatch.schedule.frontier import FrontierState, run_type, start_frontier
from edbatch.schedule.lower_bound import longest_chains, lower_bound
from edbatch.schedule.policy import Frontier, FrontierPolicy, Policy
from edbatch.schedule.schedule import Schedule, check_schedule
from edbatch.schedule.sufficient_condition import HeadState

__all__ = [
    "Frontier",
    "FrontierPolicy",
    "FrontierState",
    "HeadState",
    "Policy",
    "Schedule",
    "check_schedule",
    "longest_chains",
    "lower_bound",
    "run_type",
    "start_frontier",
]
