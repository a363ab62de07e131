"""Records and plans batches in pipelines of Grain (``pip install 'edbatch[grain]'``).

`RecordBatch` records a batch wherever Grain makes it, also in a worker process;
`PlanBatch` plans it in the process that trains.

Gain: no speed of its own. Without it, users of Grain would have to replace its
shuffling, workers and checkpoints by those of `edbatch.Loader`.
"""

from edbatch.grain.batches import PlanBatch, PlannedBatch, RecordBatch, RecordedBatch

__all__ = ["PlanBatch", "PlannedBatch", "RecordBatch", "RecordedBatch"]
