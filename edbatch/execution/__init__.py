"""Execution: plans as data, and the one compiled program that reads them."""

from edbatch.execution.buckets import Bucket, BucketStore
from edbatch.execution.gradient_memory import GradientMemory, gradient_memory
from edbatch.execution.kept_memory import keep_memory
from edbatch.execution.plan import Encoded, Plan, PlanShape, encode_plan
from edbatch.execution.plan_cache import CacheInfo, PlanCache
from edbatch.execution.program import ProgramShape, compiled_copies
from edbatch.execution.ragged import Ragged
from edbatch.execution.report import PlanReport
from edbatch.execution.run import run_plan

__all__ = [
    "Bucket",
    "BucketStore",
    "CacheInfo",
    "Encoded",
    "GradientMemory",
    "Plan",
    "PlanCache",
    "PlanReport",
    "PlanShape",
    "ProgramShape",
    "Ragged",
    "compiled_copies",
    "encode_plan",
    "gradient_memory",
    "keep_memory",
    "run_plan",
]
