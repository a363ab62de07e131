"""For pipelines of Grain (``pip install 'edbatch[grain]'``): its shuffling, its state.

`RecordBatch` records a batch wherever Grain makes it, in a worker process as well;
`PlanBatch` plans it in the process that trains.
"""

from edbatch.grain.batches import PlanBatch, PlannedBatch, RecordBatch, RecordedBatch

__all__ = ["PlanBatch", "PlannedBatch", "RecordBatch", "RecordedBatch"]
