"""Plans: a minibatch's schedule as data, its costs, and functions to run it.

Gain (docs/results.md, "Speed"): 50 different minibatches compile one program. Without
plans as data, each would need its own program, as in the system *exact* there.
"""

from edbatch.graph.ragged import Ragged
from edbatch.plan.cache import CacheInfo, PlanCache
from edbatch.plan.gradient_memory import GradientMemory, gradient_memory
from edbatch.plan.plan import Encoded, Plan, PlanShape
from edbatch.plan.report import PlanReport
from edbatch.plan.run import run_plan

__all__ = [
    "CacheInfo",
    "Encoded",
    "GradientMemory",
    "Plan",
    "PlanCache",
    "PlanReport",
    "PlanShape",
    "Ragged",
    "gradient_memory",
    "run_plan",
]
