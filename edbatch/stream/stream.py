"""A stream as the program reads it; cutting a stream into several."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from edbatch.stream.format import RecordFormat, find_chunks


class Stream(NamedTuple):
    """A schedule as data, padded to a bucket: a pytree of int32 arrays.

    ``I`` integers, ``S`` steps, ``P`` loops; see `edbatch.stream.format`.

    Attributes:
        records: Records of all chunks; ``[I]``.
        trips: Iterations of each loop in each step; ``[S, P]``.
        num_steps: Steps in use, a scalar; the rest of ``trips`` is padding.
    """

    records: Any
    trips: Any
    num_steps: Any


def split_stream(
    stream: Stream, formats: Sequence[RecordFormat], at: Sequence[int]
) -> list[Stream]:
    """Cuts a stream into several that, run one after another, do the same.

    Args:
        stream: The stream; NumPy arrays.
        formats: Formats of the program's loops.
        at: Number of chunks before each cut; ascending, from 0 to all.

    Returns:
        One stream more than there are cuts. All have the array sizes of the original,
        so the program that was compiled for it runs them on its arenas.
    """
    chunks = find_chunks(formats, stream.trips[: stream.num_steps])
    cuts = [0, *at, len(chunks.loop)]
    assert cuts == sorted(cuts), f"cuts ascend from 0 to all chunks, unlike {cuts}"
    parts = []
    for first, last in pairwise(cuts):
        own = stream.records[chunks.start[first] : chunks.start[last]]
        records = np.zeros_like(stream.records)
        records[: len(own)] = own
        trips = np.zeros_like(stream.trips)
        step = chunks.step[first:last]
        step = step - step.min(initial=len(trips))
        np.add.at(trips, (step, chunks.loop[first:last]), 1)
        num_steps = np.int32(step.max(initial=-1) + 1)
        parts.append(Stream(records, trips, num_steps))
    return parts
