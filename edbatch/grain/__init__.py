"""For pipelines of Grain (``pip install 'edbatch[grain]'``): its shuffling, its state.

`RecordBatch` records a batch wherever Grain makes it, in a worker process as well;
`PlanBatch` plans it in the process that trains.

Gain: no speed of its own. Without it, who reads data by Grain would have to leave its
shuffling, its workers and its checkpoints for those of `edbatch.Loader`.
"""

from edbatch.grain.batches import PlanBatch, PlannedBatch, RecordBatch, RecordedBatch

__all__ = ["PlanBatch", "PlannedBatch", "RecordBatch", "RecordedBatch"]
