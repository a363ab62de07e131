"""Sharding: one minibatch on several devices, each with its own plan.

Two devices on two cores run the forward pass of tree-LSTMs 1.45 to 1.6 times as fast as
one device on both cores, gradients up to 1.17 times (`experiments/scaling.py`,
docs/results.md); `edbatch.choose_devices` measures which is faster for a model.
"""

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
