"""The input pipeline: minibatches planned in background threads, in a fixed order.

`Loader` records each instance once and plans one minibatch after the other ahead of
the loop that consumes them. With one worker process, the training process spends 1.4
instead of 3.4 ms on 64 fresh trees (`experiments/loader_workers.py`,
docs/feed-data.md).
"""

from edbatch.loader.loader import Loader
from edbatch.loader.minibatch import Minibatch
from edbatch.loader.order import epoch_order
from edbatch.loader.report import LoaderReport

__all__ = ["Loader", "LoaderReport", "Minibatch", "epoch_order"]
