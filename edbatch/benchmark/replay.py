"""A minibatch with more chunks slipped in: what one chunk costs where it really runs.

A plan is data, so a chunk can run once more without anything being compiled: its record
is written into the stream again and its loop turns once more. Added chunks read the
operands of real nodes of their type, in the order in which the minibatch has them, and
write where those nodes write, so all values stay those of the model, and reads are as
scattered as they are.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from edbatch.execution import Plan
from edbatch.execution.cell_batch import record_length
from edbatch.execution.stream import Pair

_LEAST_ROOM = 1 << 17


class Replay:
    """A plan, taken apart, into which chunks can be added.

    Attributes:
        plan: The plan.
        pairs: (type id, width) of each of the program's loops.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pairs = plan.shape.program.pairs
        self._types = plan.shape.program.types.types
        self._rows = dict(plan.shape.program.arena_rows)
        self._steps: list[list[np.ndarray]] = [[] for _ in range(plan.num_steps)]
        found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        for step, (type_id, width), record in _chunks(plan):
            self._steps[step].append(record)
            outputs = len(self._types[type_id].output_kinds)
            lanes = record[outputs:].reshape(-1, width)
            first = np.repeat(record[:outputs, None], width, axis=1)
            found.setdefault(type_id, []).append((first, lanes))
        # Per type: first output rows of each lane's chunk, and what the lane reads.
        self._lanes = {
            type_id: tuple(
                np.concatenate(each, axis=1) for each in zip(*rows, strict=True)
            )
            for type_id, rows in found.items()
        }
        longest = max(record_length(self._types[t], width) for t, width in self.pairs)
        self._room = max(_LEAST_ROOM, 16 * longest)

    def most(self, pair: Pair) -> int:
        """Returns how many chunks of a (type, width) pair can be added."""
        return self._room // record_length(self._types[pair[0]], pair[1])

    def add(self, pair: Pair, count: int) -> Plan:
        """Adds chunks, spread evenly over the minibatch.

        Args:
            pair: Type, of which the minibatch has nodes, and width.
            count: How many, from 0 to `most`.

        Returns:
            The plan; all plans of one replay run by the same compiled program.
        """
        assert 0 <= count <= self.most(pair), f"there is no room for {count} chunks"
        records, trips = [], []
        turns = np.zeros_like(self.plan.trips[0])
        steps = len(self._steps)
        ends = np.linspace(0, count, steps + 1).round().astype(int)
        for step, (first, last) in enumerate(pairwise(ends)):
            records += self._steps[step]
            trips.append(self.plan.trips[step])
            if last > first:
                records += [self._record(pair, k) for k in range(first, last)]
                trips.append(turns.copy())
                trips[-1][self.pairs.index(pair)] = last - first
        stream = np.zeros(len(self.plan.stream) + self._room, np.int32)
        flat = np.concatenate(records)
        stream[: len(flat)] = flat
        turned = np.zeros((2 * steps, len(self.pairs)), np.int32)
        turned[: len(trips)] = trips
        return replace(
            self.plan, stream=stream, trips=turned, num_steps=np.int32(len(trips))
        )

    def _record(self, pair: Pair, k: int) -> np.ndarray:
        """The record of the k-th chunk that is added."""
        type_id, width = pair
        firsts, lanes = self._lanes[type_id]
        lane = (k * width + np.arange(width)) % lanes.shape[1]
        kinds = self._types[type_id].output_kinds
        last = np.array([self._rows[kind] - width for kind in kinds], np.int32)
        outputs = np.minimum(firsts[:, lane[0]], last)
        return np.concatenate([outputs, lanes[:, lane].reshape(-1)])


def _chunks(plan: Plan) -> Iterator[tuple[int, Pair, np.ndarray]]:
    """Step, type and width, and record of each chunk, in order."""
    pairs, types = plan.shape.program.pairs, plan.shape.program.types.types
    at = 0
    for step, turns in enumerate(plan.trips[: plan.num_steps]):
        for p in np.flatnonzero(turns):
            length = record_length(types[pairs[p][0]], pairs[p][1])
            for _ in range(turns[p]):
                yield step, pairs[p], plan.stream[at : at + length]
                at += length
