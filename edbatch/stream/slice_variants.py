"""Slice variants: which operands a program reads as slices.

An operand whose rows are consecutive, in a chunk's own order, is read as one slice of
an arena and not gathered row by row. A compiled loop does the one or the other, so what
could be sliced in any combination is cut down to few *slice variants*: sets of operand
slots. Each type has the variant that gathers everything and at most `_VARIANTS` others,
those that read most bytes in place in its sample: the first minibatch that has operands
of the type in place. A chunk takes the best variant that its operands allow. Later
minibatches add none, so their plans find their loops compiled.
"""

import threading
from dataclasses import dataclass, field

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.memory_planner.layout import Layout
from edbatch.memory_planner.problem import slot_tables
from edbatch.without_lock import WithoutLock

Variant = tuple[int, ...]  # operand slots, ascending
GATHER: Variant = ()

_VARIANTS = 2
_MOST_SLOTS = 32  # of a type, so that a set of slots is a number; others are gathered


@dataclass(frozen=True, eq=False)
class Slices:
    """What the ``C`` chunks of a layout read as slices.

    Attributes:
        variants: The variants in use.
        chunk_variant: Position in ``variants`` of each chunk's.
        bytes: Bytes that nodes read through slices.
        rows: Rows that an arena needs for slices, which are as wide as their chunk, by
            array kind.
    """

    variants: tuple[Variant, ...]
    chunk_variant: np.ndarray  # [C] int32
    bytes: int = 0
    rows: dict[int, int] = field(default_factory=dict)


class SliceVariants(WithoutLock):
    """The variants of one model's types, shared by the threads that plan for it.

    Attributes:
        least_share: A variant is added if it reads at least this share of the bytes
            that a minibatch's nodes of the type read, beyond what the known ones do;
            above 1 for none.
    """

    def __init__(self, least_share: float = 0.25) -> None:
        self.least_share = least_share
        self._variants: dict[int, list[Variant]] = {}
        self._slot_bytes = np.zeros((0, 0), np.int64)
        self._frozen = False
        self.lock = threading.Lock()

    def freeze(self) -> None:
        """Adds no variant any more: types without one are gathered."""
        with self.lock:
            self._frozen = True

    def known(self) -> dict[int, tuple[Variant, ...]]:
        """Returns the variants beside gathering, of each type that has some."""
        with self.lock:
            return {k: tuple(each) for k, each in self._variants.items() if each}

    def choose(self, graph: DataflowGraph, layout: Layout) -> Slices:
        """Chooses the variant of each chunk.

        Args:
            graph: The graph.
            layout: Its layout.

        Returns:
            The variants in use, and what they ask for.
        """
        chunk_variant = np.zeros(len(layout.chunk_start), np.int32)
        nothing = Slices((GATHER,), chunk_variant)
        if self.least_share > 1 or not layout.in_place.any():
            return nothing
        with self.lock:
            if len(self._slot_bytes) != len(graph.types):
                self._slot_bytes = slot_tables(graph.types)[0][:, :_MOST_SLOTS]
            table = self._slot_bytes
        chunk_type = graph.node_type[layout.order[layout.chunk_start]]
        slots = table.shape[1]
        can = layout.in_place[:, :slots] & (table > 0)[chunk_type]
        pattern = can @ (1 << np.arange(slots, dtype=np.int64))
        keys, first, inverse = np.unique(
            pattern * len(table) + chunk_type, return_index=True, return_inverse=True
        )
        weight = np.bincount(inverse, layout.chunk_size, len(keys))
        key_type = chunk_type[first]
        variants = [GATHER]
        num_bytes, rows = 0, dict[int, int]()
        for type_id in np.unique(key_type[pattern[first] > 0]).tolist():
            own = np.flatnonzero(key_type == type_id)
            best = self._cover(type_id, can[first[own]], weight[own], table[type_id])
            for key, variant in zip(own.tolist(), best, strict=True):
                if variant == GATHER:
                    continue
                if variant not in variants:
                    variants.append(variant)
                chunks = np.flatnonzero(inverse == key)
                chunk_variant[chunks] = variants.index(variant)
                num_bytes += int(weight[key] * table[type_id][list(variant)].sum())
                for kind, end in _ends(graph, layout, chunks, type_id, variant):
                    rows[kind] = max(rows.get(kind, 0), end)
        return Slices(tuple(variants), chunk_variant, num_bytes, rows)

    def _cover(
        self, type_id: int, can: np.ndarray, weight: np.ndarray, row_bytes: np.ndarray
    ) -> list[Variant]:
        """Finds the best variant of each pattern; the type's sample adds those."""
        with self.lock:
            decided = self._frozen or type_id in self._variants
            known = self._variants.setdefault(type_id, [])
            total = weight.sum() * row_bytes.sum()
            best, now = _best(can, known, row_bytes)
            while not decided and len(known) < _VARIANTS:
                options = {tuple(np.flatnonzero(each).tolist()) for each in can}
                gains = {
                    variant: float(
                        weight @ np.maximum(_read(can, variant, row_bytes) - now, 0)
                    )
                    for variant in sorted(options - {GATHER} - set(known))
                }
                variant = max(gains, key=lambda each: gains[each], default=GATHER)
                if gains.get(variant, 0) < max(self.least_share * total, 1):
                    break
                known.append(variant)
                best, now = _best(can, known, row_bytes)
            return best


def _ends(
    graph: DataflowGraph,
    layout: Layout,
    chunks: np.ndarray,
    type_id: int,
    variant: Variant,
) -> list[tuple[int, int]]:
    """Array kind and end of the last slice, for each slot of a variant."""
    start = graph.operand_start[layout.order[layout.chunk_start[chunks]]]
    kinds = graph.types.types[type_id].operand_kinds
    found = []
    for slot in variant:
        first = layout.value_row[graph.operands[start + slot]]
        found.append((kinds[slot], int((first + layout.chunk_width[chunks]).max())))
    return found


def _read(can: np.ndarray, variant: Variant, row_bytes: np.ndarray) -> np.ndarray:
    """Bytes that a node of each pattern reads in place by a variant; 0 if it cannot."""
    slots = list(variant)
    return can[:, slots].all(axis=1) * row_bytes[slots].sum()


def _best(
    can: np.ndarray, known: list[Variant], row_bytes: np.ndarray
) -> tuple[list[Variant], np.ndarray]:
    """The variant that reads most bytes in place for each pattern, and the bytes."""
    best = [GATHER] * len(can)
    most = np.zeros(len(can), np.int64)
    for variant in known:
        read = _read(can, variant, row_bytes)
        for k in np.flatnonzero(read > most):
            best[k] = variant
        most = np.maximum(most, read)
    return best, most
