"""Inserts extra chunks into a minibatch, to measure the cost of one chunk in place.

A plan is data, so a chunk can run again without recompilation: its record is written
into the stream again, and its loop runs one more iteration. Added chunks read the
operands of real nodes of their type, in the minibatch's order, so reads are as
scattered as in the original minibatch. They write from the first output row of a real
chunk of their type on, so arenas contain only outputs of the model's cells. An added
chunk may overwrite the values of other nodes: only the times are meaningful.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from edbatch.plan import Plan
from edbatch.stream.format import Record, find_chunks, record_formats
from edbatch.stream.loop import Loop

_LEAST_ROOM = 1 << 17


class Replay:
    """A plan, split into its records, to which chunks can be added.

    All loops of the plan gather their operands.

    Attributes:
        plan: The plan.
        loops: The program's loops.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loops = plan.shape.program.loops
        assert not any(loop.sliced for loop in self.loops), "added rows are gathered"
        self._types = plan.shape.program.types.types
        self._formats = record_formats(self._types, self.loops)
        self._rows = dict(plan.shape.program.arena_rows)
        self._steps: list[list[np.ndarray]] = [[] for _ in range(plan.num_steps)]
        found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        chunks = find_chunks(self._formats, plan.trips[: plan.num_steps])
        spans = zip(chunks.step, chunks.loop, pairwise(chunks.start), strict=True)
        for step, p, (start, stop) in spans:
            record = plan.stream[start:stop]
            self._steps[step].append(record)
            fields, loop = self._formats[p].read(record), self.loops[p]
            reads = [*fields.externals, *fields.operands]
            operand_rows = np.array(reads, np.int32).reshape(-1, loop.width)
            outputs = np.array(fields.outputs, np.int32)[:, None]
            first = np.repeat(outputs, loop.width, axis=1)
            found.setdefault(loop.type_id, []).append((first, operand_rows))
        # Per type: for each row, its chunk's first output rows, and the rows it reads.
        self._batch_rows = {
            type_id: tuple(
                np.concatenate(each, axis=1) for each in zip(*rows, strict=True)
            )
            for type_id, rows in found.items()
        }
        longest = max(each.length for each in self._formats)
        self._room = max(_LEAST_ROOM, 16 * longest)

    def most(self, loop: Loop) -> int:
        """Returns the largest number of chunks of a loop that can be added."""
        return self._room // self._formats[self.loops.index(loop)].length

    def add(self, loop: Loop, count: int) -> Plan:
        """Adds chunks, spread evenly over the minibatch.

        Args:
            loop: The loop of the chunks; the minibatch must have nodes of its type.
            count: The number of chunks, from 0 to `most`.

        Returns:
            The plan. All plans of one replay run with the same compiled program.
        """
        assert 0 <= count <= self.most(loop), f"there is no room for {count} chunks"
        records, trips = [], []
        no_trips = np.zeros_like(self.plan.trips[0])
        steps = len(self._steps)
        ends = np.linspace(0, count, steps + 1).round().astype(int)
        for step, (first, last) in enumerate(pairwise(ends)):
            records += self._steps[step]
            trips.append(self.plan.trips[step])
            if last > first:
                records += [self._record(loop, k) for k in range(first, last)]
                trips.append(no_trips.copy())
                trips[-1][self.loops.index(loop)] = last - first
        stream = np.zeros(len(self.plan.stream) + self._room, np.int32)
        flat = np.concatenate(records)
        stream[: len(flat)] = flat
        trip_counts = np.zeros((2 * steps, len(self.loops)), np.int32)
        trip_counts[: len(trips)] = trips
        return replace(
            self.plan, stream=stream, trips=trip_counts, num_steps=np.int32(len(trips))
        )

    def _record(self, loop: Loop, k: int) -> np.ndarray:
        """Returns the record of the k-th added chunk."""
        type_id, width = loop.type_id, loop.width
        firsts, operand_rows = self._batch_rows[type_id]
        columns = (k * width + np.arange(width)) % operand_rows.shape[1]
        kinds = self._types[type_id].output_kinds
        last = np.array([self._rows[kind] - width for kind in kinds], np.int32)
        outputs = np.minimum(firsts[:, columns[0]], last)
        externals = len(self._types[type_id].external_kinds)
        reads = list(operand_rows[:, columns])
        return self._formats[self.loops.index(loop)].write(
            Record(list(outputs), width, 0, reads[:externals], reads[externals:])
        )
