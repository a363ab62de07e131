"""Scheduling policies, their training and their file format."""

from edbatch.policies.bound_weights import BoundWeights
from edbatch.policies.comparison import Comparison, compare, meets_bounds
from edbatch.policies.cost_file import load_costs, save_costs
from edbatch.policies.cost_model import CostModel, CostRecord
from edbatch.policies.encoding import ENCODINGS
from edbatch.policies.exact import Optimum, find_optimum
from edbatch.policies.guard import Guarded, guarded
from edbatch.policies.heuristics import Agenda, AgendaRemaining, Depth, Greedy
from edbatch.policies.machine_trace import MachineTrace, trace_machine
from edbatch.policies.policy_file import load_policy, save_policy
from edbatch.policies.registry import get_policy, zoo_names
from edbatch.policies.search import Searched
from edbatch.policies.state_machine import MachineState, StateMachine
from edbatch.policies.training import train_policy, warm_up
from edbatch.policies.training_record import TrainingRecord

__all__ = [
    "ENCODINGS",
    "Agenda",
    "AgendaRemaining",
    "BoundWeights",
    "Comparison",
    "CostModel",
    "CostRecord",
    "Depth",
    "Greedy",
    "Guarded",
    "MachineState",
    "MachineTrace",
    "Optimum",
    "Searched",
    "StateMachine",
    "TrainingRecord",
    "compare",
    "find_optimum",
    "get_policy",
    "guarded",
    "load_costs",
    "load_policy",
    "meets_bounds",
    "save_costs",
    "save_policy",
    "trace_machine",
    "train_policy",
    "warm_up",
    "zoo_names",
]
