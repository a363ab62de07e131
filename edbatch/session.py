"""What recording and planning have found out about one model so far."""

import threading
from dataclasses import dataclass, field

import numpy as np

from edbatch.execution.buckets import BucketStore
from edbatch.execution.in_place import Forms
from edbatch.execution.result import find_ragged
from edbatch.graph.outputs import Skeleton
from edbatch.graph.recorder import CallMemory
from edbatch.graph.type_table import TypeTable
from edbatch.memory_planner.hoisting import SplitTypes


@dataclass(eq=False)
class Session:
    """What a batched function knows about parameters of one structure.

    Threads that plan share it.

    Attributes:
        types: The types that were recorded.
        split: The types as they run, if products of external inputs run ahead.
        store: The buckets that were planned for.
        forms: Which operands are read as slices.
        memory: What recording remembers about calls.
        ragged: Positions of the output's lists that are returned as `Ragged`.
        list_lengths: The lengths of its other lists, by position.
        lock: Guards the last two.
    """

    types: TypeTable
    store: BucketStore
    forms: Forms
    split: SplitTypes | None = None
    memory: CallMemory = field(default_factory=CallMemory)
    ragged: set[tuple[int, ...]] = field(default_factory=set)
    list_lengths: dict[tuple[int, ...], int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def runs(self, types: TypeTable) -> bool:
        """Tells whether these are the types of plans of this session."""
        return types is self.types or (
            self.split is not None and types is self.split.table
        )

    def see_lists(
        self, skeleton: Skeleton, lengths: tuple[np.ndarray, ...]
    ) -> set[tuple[int, ...]]:
        """Notes which of the output's lists differ in length.

        Args:
            skeleton: The structure of a minibatch's output.
            lengths: Its columns of lengths.

        Returns:
            The positions of all lists that ever did.
        """
        with self.lock:
            self.ragged |= find_ragged(skeleton, lengths, self.list_lengths)
            return set(self.ragged)
