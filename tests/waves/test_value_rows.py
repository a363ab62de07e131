"""Compares rows of values in flight with a dictionary of each row's content."""

import numpy as np
import pytest

from edbatch.waves.value_rows import ValueRows


class Memory:
    """Arenas of one number per row, whose rows move as the runner moves them."""

    def __init__(self, kinds):
        self.rows = ValueRows()
        self.rows.kinds_up_to(kinds)
        self.arenas = [{} for _ in range(kinds)]
        self.expected = {}  # number of the value -> its kind and content
        self.waiting = {}  # number of a value without a row -> its kind

    def add(self, kinds, ran=None):
        """Adds values, some of which get rows at once and others later."""
        self.rows.append(len(kinds))
        first = self.rows.end - len(kinds)
        assert (self.rows.of(np.arange(first, self.rows.end)) < 0).all()
        for k, kind in enumerate(kinds):
            if ran is None or ran[k]:
                self.run(first + k, kind)
            else:
                self.waiting[first + k] = kind
        return range(first, first + len(kinds))

    def run(self, value, kind):
        rows, own_kinds = self.rows.tables()
        row = int(self.rows.next_row[kind])
        at = value - self.rows.first
        rows[at], own_kinds[at] = row, kind
        self.rows.next_row[kind] += 1
        self.arenas[kind][row] = 1000 + value
        self.expected[value] = (kind, 1000 + value)

    def free(self, first, last, kept=()):
        self.rows.free(first, last)
        if len(kept):
            self.rows.keep(np.array(kept))
        for value in range(first, last):
            if value not in kept:
                self.expected.pop(value, None)
                self.waiting.pop(value, None)

    def compact(self):
        moved = self.rows.compact()
        for kind, own in moved.items():
            before = self.arenas[kind]
            self.arenas[kind] = {k + 1: before[int(row)] for k, row in enumerate(own)}

    def check(self):
        for value, (kind, content) in self.expected.items():
            row = int(self.rows.of([value])[0])
            assert self.arenas[kind][row] == content
        for value in self.waiting:
            assert self.rows.of([value])[0] < 0
        assert self.rows.in_use == len(self.expected)


@pytest.mark.parametrize("seed", range(8))
def test_values_keep_what_they_hold(seed):
    rng = np.random.default_rng(seed)
    memory = Memory(3)
    blocks = []
    for _ in range(300):
        kinds = rng.integers(3, size=rng.integers(1, 40)).tolist()
        blocks.append(memory.add(kinds, rng.random(len(kinds)) < 0.8))
        for value in list(memory.waiting):
            if rng.random() < 0.1:
                memory.run(value, memory.waiting.pop(value))
        while len(blocks) > 5 and rng.random() < 0.6:
            block = blocks.pop(int(rng.integers(len(blocks))))
            kept = [each for each in block if rng.random() < 0.02]
            memory.free(block.start, block.stop, kept)
        if rng.random() < 0.1:
            memory.compact()
            memory.check()
    memory.check()


def test_what_has_ended_takes_no_memory():
    memory = Memory(1)
    for _ in range(2000):
        block = memory.add([0] * 50)
        memory.free(block.start, block.stop)
        if memory.rows.next_row[0] > 500:
            memory.compact()
    assert len(memory.rows) <= 1100
    assert memory.rows.end == 100_000
    assert memory.rows.next_row[0] <= 551
