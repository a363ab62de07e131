"""Slice variants: which operands a program reads as slices.

An operand whose rows are consecutive, in a chunk's own order, is read as one slice of
an arena instead of being gathered row by row. Each compiled loop does only one of the
two per operand, so the possible combinations of sliced operands are reduced to a few
*slice variants*: sets of operand slots. Each type has the variant that gathers
everything and at most `_VARIANTS` others: those that read the most bytes in place in
its sample, which is the first minibatch that has operands of the type in place. A chunk
takes the best variant that its operands allow. Later minibatches add no variants, so
the loops that their plans need are already compiled.

Gain (`edbatch bench --planner`, docs/results-memory.md): the forward pass of taggers
takes 0.78 times as long with packing and slices as without either, and 0.90 times with
packing only; that of lattice-lstm 0.90 and 0.93 times; that of trees gains nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.kernel import kernel
from edbatch.memory_planner.layout import Layout
from edbatch.memory_planner.problem import layout_tables
from edbatch.sorting import distinct
from edbatch.stream.type_decisions import TypeDecisions

Variant = tuple[int, ...]  # operand slots, ascending
GATHER: Variant = ()

_VARIANTS = 2
_MOST_SLOTS = 32  # per type, so a set of slots fits in an integer; others are gathered
_ANY_SLOT = (1 << _MOST_SLOTS) - 1


@dataclass(frozen=True, eq=False)
class Slices:
    """Slices that the ``C`` chunks of a layout read.

    Attributes:
        variants: The variants in use.
        chunk_variant: Position in ``variants`` of each chunk's variant.
        bytes: Bytes that nodes read through slices.
        rows: Rows that an arena needs for slices, which are as wide as their chunk, by
            array kind.
    """

    variants: tuple[Variant, ...]
    chunk_variant: np.ndarray  # [C] int32
    bytes: int = 0
    rows: dict[int, int] = field(default_factory=dict)


class SliceVariants(TypeDecisions[tuple[Variant, ...]]):
    """The variants of one model's types.

    Once frozen, operands of types without a sample are gathered.

    Attributes:
        least_share: A variant is added if, beyond what the known variants read in
            place, it reads at least this share of the bytes that a minibatch's nodes of
            the type read; a value above 1 disables slices.
    """

    def __init__(self, least_share: float = 0.25) -> None:
        super().__init__()
        self.least_share = least_share
        # By key (type and pattern), filled once the type's variants are decided.
        self._chosen: dict[int, Variant] = {}

    def known(self) -> dict[int, tuple[Variant, ...]]:
        """Returns the variants other than `GATHER`, of each type that has any."""
        with self.lock:
            return {k: each for k, each in self._decided.items() if each}

    def choose(self, graph: DataflowGraph, layout: Layout) -> Slices:
        """Chooses the variant of each chunk.

        Args:
            graph: The graph.
            layout: Its layout.

        Returns:
            The variants in use, and the bytes and rows of the slices.
        """
        if self.least_share > 1 or not layout.in_place.any():
            return Slices((GATHER,), np.zeros(len(layout.chunk_start), np.int32))
        *_, slot_bytes, slot_kind = layout_tables(graph)
        keys, chunk_key, weight = _find_patterns(
            layout.in_place,
            layout.chunk_size,
            layout.chunk_start,
            layout.order,
            graph.node_type,
            slot_bytes,
        )
        of_key = self._variants_of(keys, weight, slot_bytes[:, :_MOST_SLOTS])
        variants = list(dict.fromkeys([GATHER, *of_key]))
        key_variant = np.array([variants.index(each) for each in of_key], np.int32)
        chunk_variant = key_variant[chunk_key]
        rows, num_bytes = _count_slices(
            np.array([sum(1 << slot for slot in each) for each in variants], np.int64),
            chunk_variant,
            layout.chunk_start,
            layout.order,
            layout.chunk_size,
            layout.chunk_width,
            layout.value_row,
            graph.arrays,
            slot_bytes,
            slot_kind,
            np.zeros(len(layout.arena_rows), np.int64),
        )
        ends = {kind: end for kind, end in enumerate(rows.tolist()) if end}
        return Slices(tuple(variants), chunk_variant, num_bytes, ends)

    def _variants_of(
        self, keys: np.ndarray, weight: np.ndarray, slot_bytes: np.ndarray
    ) -> list[Variant]:
        """Returns the variant of each pattern; for `keys` see `_find_patterns`."""
        listed = keys.tolist()
        with self.lock:
            found = [self._chosen.get(key) for key in listed]
        new = {
            key >> _MOST_SLOTS
            for key, variant in zip(listed, found, strict=True)
            if variant is None and key & _ANY_SLOT
        }
        slots = np.arange(slot_bytes.shape[1])
        for type_id in sorted(new):
            own = np.flatnonzero(keys >> _MOST_SLOTS == type_id)
            can = (keys[own, None] >> slots & 1).astype(np.bool_)
            best = self._cover(type_id, can, weight[own], slot_bytes[type_id])
            for place, variant in zip(own.tolist(), best, strict=True):
                found[place] = variant
            with self.lock:
                self._chosen |= zip(keys[own].tolist(), best, strict=True)
        return [each or GATHER for each in found]

    def _cover(
        self, type_id: int, can: np.ndarray, weight: np.ndarray, row_bytes: np.ndarray
    ) -> list[Variant]:
        """Finds each pattern's best variant; adds variants on a type's first call."""
        with self.lock:
            decided = self._frozen or type_id in self._decided
            known = self._decided.get(type_id, ())
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
                known += (variant,)
                best, now = _best(can, known, row_bytes)
            self._decided[type_id] = known
            return best


def _read(can: np.ndarray, variant: Variant, row_bytes: np.ndarray) -> np.ndarray:
    """Bytes per node that a variant reads in place, by pattern; 0 if not possible."""
    slots = list(variant)
    return can[:, slots].all(axis=1) * row_bytes[slots].sum()


def _best(
    can: np.ndarray, known: Sequence[Variant], row_bytes: np.ndarray
) -> tuple[list[Variant], np.ndarray]:
    """The variant that reads the most bytes in place, per pattern, and these bytes."""
    best = [GATHER] * len(can)
    most = np.zeros(len(can), np.int64)
    for variant in known:
        read = _read(can, variant, row_bytes)
        for k in np.flatnonzero(read > most):
            best[k] = variant
        most = np.maximum(most, read)
    return best, most


@kernel
def _find_patterns(in_place, chunk_size, chunk_start, order, node_type, slot_bytes):
    """Finds which slots each chunk could read as slices.

    Returns the keys, ascending, each a type and, in its lower bits, a set of slots; the
    position of each chunk's key; and the number of nodes with each key.
    """
    count, slots = in_place.shape
    slots = min(slots, _MOST_SLOTS)
    key = np.empty(count, np.int64)
    for c in range(count):
        t = np.int64(node_type[order[chunk_start[c]]])
        key[c] = t << _MOST_SLOTS
        for slot in range(slots):
            if in_place[c, slot] and slot_bytes[t, slot] > 0:
                key[c] |= np.int64(1) << slot
    keys, chunk_key = distinct(key)
    weight = np.zeros(len(keys), np.float64)
    for c in range(count):
        weight[chunk_key[c]] += chunk_size[c]
    return keys, chunk_key, weight


@kernel
def _count_slices(
    masks, chunk_variant, chunk_start, order, chunk_size, chunk_width, value_row, nodes,
    slot_bytes, slot_kind, rows,
):  # fmt: skip
    """Returns the rows that arenas need for slices, by kind, and the bytes sliced."""
    num_bytes = 0
    for c in range(len(chunk_variant)):
        mask = masks[chunk_variant[c]]
        node = order[chunk_start[c]]
        t = nodes.node_type[node]
        start = nodes.operand_start[node]
        slot = 0
        while mask >> slot:
            if mask >> slot & 1:
                end = value_row[nodes.operands[start + slot]] + chunk_width[c]
                kind = slot_kind[t, slot]
                rows[kind] = max(rows[kind], end)
                num_bytes += chunk_size[c] * slot_bytes[t, slot]
            slot += 1
    return rows, num_bytes
