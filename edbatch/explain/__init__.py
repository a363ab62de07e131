"""Costs of a minibatch, type by type, and reasons that keep types apart.

Everything is counted on the host, from the recorded graph, its schedule and its layout.

Gain: no speed of its own. Without it, what a change of the model would save has to be
guessed: which cell costs what, and why calls of it that look alike share no batch.
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
