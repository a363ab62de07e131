"""Scheduling: from a graph to a sequence of batches."""

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
