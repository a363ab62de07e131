"""Scheduling policies, their training and their file format.

Ratio of batches to the lower bound on held-out minibatches, greedy and learned: word
lattices 1.40 and 1.23, CLEVR programs 1.16 and 1.08, trees of two types 1.13 and 1.07
(docs/results-policies.md). On trees of one type, greedy meets the bound.
"""

from edbatch.policies.comparison import Comparison, compare, meets_bounds
from edbatch.policies.cost.file import load_costs, save_costs
from edbatch.policies.cost.model import CostModel, CostRecord
from edbatch.policies.files.policy_file import load_policy, save_policy
from edbatch.policies.fsm.encoding import ENCODINGS
from edbatch.policies.fsm.machine_state import MachineState
from edbatch.policies.fsm.machine_trace import MachineTrace, trace_machine
from edbatch.policies.fsm.state_machine import StateMachine
from edbatch.policies.fsm.training import train_policy, warm_up
from edbatch.policies.fsm.training_record import TrainingRecord
from edbatch.policies.guard import BestOfHeuristics, guarded
from edbatch.policies.heuristics import Agenda, AgendaRemaining, Depth, Greedy
from edbatch.policies.registry import get_policy, zoo_names
from edbatch.policies.renamed import __getattr__ as __getattr__
from edbatch.policies.search.beam_search import BeamSearch
from edbatch.policies.search.exact import Optimum, find_optimum
from edbatch.policies.smooth_bound.weights import BoundWeights

__all__ = [
    "ENCODINGS",
    "Agenda",
    "AgendaRemaining",
    "BeamSearch",
    "BestOfHeuristics",
    "BoundWeights",
    "Comparison",
    "CostModel",
    "CostRecord",
    "Depth",
    "Greedy",
    "MachineState",
    "MachineTrace",
    "Optimum",
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
