"""Costs of a minibatch, type by type, and reasons that keep types apart.

Everything is counted on the host, from the recorded graph, its schedule and its layout.

Gain: no speed by itself. Without it, one has to guess how much a change of the model
would save: how much each cell costs, and why similar calls of a cell share no batch.
"""

from edbatch.explain.apart import Apart
from edbatch.explain.report import Explanation
from edbatch.explain.sharded import ShardedExplanation
from edbatch.explain.uses import BatchUses, MinibatchUse, TypeUse

__all__ = [
    "Apart",
    "BatchUses",
    "Explanation",
    "MinibatchUse",
    "ShardedExplanation",
    "TypeUse",
]
