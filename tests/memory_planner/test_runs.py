"""Sequences of nodes are accepted exactly if some order of each batch allows them."""

import itertools
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edbatch.memory_planner.runs import CHANGE_COLUMNS, cut_runs, link_sequence
from edbatch.memory_planner.tables import (
    AFTER,
    BATCH,
    BATCH_COLUMNS,
    BEFORE,
    END,
    FIRST_NODE,
    LAST_NODE,
    LENGTH,
    NEXT,
    NODE_COLUMNS,
    NONE,
    START,
)


@dataclass
class Decided:
    """The decisions about the nodes of batches whose blocks are consecutive."""

    batches: list[list[int]]
    after: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)  # by batch
    last: dict[int, int] = field(default_factory=dict)

    def with_sequence(self, sequence: list[int]) -> "Decided | None":
        """The decisions with one more sequence; None if no order allows it."""
        batch_of = {v: b for b, nodes in enumerate(self.batches) for v in nodes}
        after, first, last = dict(self.after), dict(self.first), dict(self.last)
        for u, v in itertools.pairwise(sequence):
            a, b = batch_of[u], batch_of[v]
            if a == b:
                decided = after.setdefault(u, v) == v
            else:
                decided = b == a + 1
                decided &= last.setdefault(a, u) == u and first.setdefault(b, v) == v
            if not decided:
                return None
        found = Decided(self.batches, after, first, last)
        return found if found.has_order() else None

    def has_order(self) -> bool:
        if len({*self.after.values()}) < len(self.after):
            return False
        for b, nodes in enumerate(self.batches):
            runs = self.runs(nodes)
            if sum(map(len, runs)) < len(nodes):
                return False  # there is a cycle
            first, last = self.first.get(b), self.last.get(b)
            if first is not None and first not in [run[0] for run in runs]:
                return False
            if last is not None and last not in [run[-1] for run in runs]:
                return False
            is_both = any(run[0] == first and run[-1] == last for run in runs)
            if is_both and len(runs) > 1:
                return False
        return True

    def runs(self, nodes: list[int]) -> list[list[int]]:
        """The runs of a batch; a cycle is not a run."""
        found = []
        for v in nodes:
            if v in self.after.values():
                continue
            run = [v]
            while run[-1] in self.after:
                run.append(self.after[run[-1]])
            found.append(run)
        return found


def new_tables(sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Tables of batches whose blocks are consecutive, with nothing decided."""
    batch = np.full((len(sizes) + 1, BATCH_COLUMNS), NONE, np.int32)
    batch[:, START] = np.cumsum([0, *sizes])
    batch[: len(sizes) - 1, NEXT] = np.arange(1, len(sizes))
    node = np.full((sum(sizes), NODE_COLUMNS), NONE, np.int32)
    node[:, BATCH] = np.repeat(np.arange(len(sizes)), sizes)
    cut_runs(node)
    return batch, node


@given(st.data())
def test_a_sequence_is_taken_if_an_order_allows_it(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    batch, node = new_tables(sizes)
    numbers = iter(range(sum(sizes)))
    decided = Decided([[next(numbers) for _ in range(size)] for size in sizes])
    change = np.empty((20, CHANGE_COLUMNS), np.int32)
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):  # some nodes of one batch, each once
            nodes = data.draw(st.sampled_from(decided.batches))
            sequence = data.draw(st.permutations(nodes))[: data.draw(st.integers(2, 5))]
        else:
            any_node = st.integers(0, sum(sizes) - 1)
            sequence = data.draw(st.lists(any_node, min_size=1, max_size=7))
        taken = link_sequence(batch, node, np.array(sequence, np.int32), change)
        allowed = decided.with_sequence(sequence)
        assert taken == (allowed is not None)
        decided = allowed or decided
        assert_is_decided(batch, node, decided)


def assert_is_decided(batch: np.ndarray, node: np.ndarray, decided: Decided) -> None:
    for b, nodes in enumerate(decided.batches):
        assert batch[b, FIRST_NODE] == decided.first.get(b, NONE)
        assert batch[b, LAST_NODE] == decided.last.get(b, NONE)
        for run in decided.runs(nodes):
            assert node[run, AFTER].tolist() == [*run[1:], NONE]
            assert node[run, BEFORE].tolist() == [NONE, *run[:-1]]
            assert node[run[0], [END, LENGTH]].tolist() == [run[-1], len(run)]
            assert node[run[-1], END] == run[0]
