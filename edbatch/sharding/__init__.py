"""Sharding: one minibatch on several devices, each with a plan of its own."""

from edbatch.sharding.balance import balance, predict_work
from edbatch.sharding.devices import use_cpu_devices
from edbatch.sharding.mesh_run import run_sharded
from edbatch.sharding.plan import ShardedPlan, ShardedShape
from edbatch.sharding.report import ShardedReport

__all__ = [
    "ShardedPlan",
    "ShardedReport",
    "ShardedShape",
    "balance",
    "predict_work",
    "run_sharded",
    "use_cpu_devices",
]
