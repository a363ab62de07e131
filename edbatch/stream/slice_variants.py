"""Which operands a program reads as slices.

An operand whose rows are consecutive, in a chunk's own order, is read as one slice of
an arena and not gathered row by row. A compiled loop does the one or the other, so what
could be sliced in any combination is cut down to few *forms*: sets of slots. Each type
has the form that gathers everything and at most `_FORMS` others, those that read most
bytes in place in the minibatch that first asked for them; a chunk takes the best form
that its operands allow. They are kept for all later minibatches, whose plans then find
their loops compiled.
"""

import threading
from dataclasses import dataclass, field

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.type_table import TypeTable
from edbatch.graph.without_lock import WithoutLock
from edbatch.memory_planner.layout import Layout

Form = tuple[int, ...]  # operand slots, ascending
GATHER: Form = ()

_FORMS = 2
_MOST_SLOTS = 32  # of a type, so that a set of slots is a number; others are gathered


@dataclass(frozen=True, eq=False)
class Slices:
    """What the ``C`` chunks of a layout read as slices.

    Attributes:
        forms: The forms in use.
        chunk_form: Position in ``forms`` of each chunk's.
        bytes: Bytes that nodes read through slices.
        rows: Rows that an arena needs for slices, which are as wide as their chunk, by
            array kind.
    """

    forms: tuple[Form, ...]
    chunk_form: np.ndarray  # [C] int32
    bytes: int = 0
    rows: dict[int, int] = field(default_factory=dict)


class Forms(WithoutLock):
    """The forms of one model's types, shared by the threads that plan for it.

    Attributes:
        least_share: A form is added if it reads at least this share of the bytes that
            a minibatch's nodes of the type read, beyond what the known ones do; above
            1 for none.
    """

    def __init__(self, least_share: float = 0.25) -> None:
        self.least_share = least_share
        self._forms: dict[int, list[Form]] = {}
        self._slot_bytes = np.zeros((0, 0), np.int64)
        self.lock = threading.Lock()

    def choose(self, graph: DataflowGraph, layout: Layout) -> Slices:
        """Chooses the form of each chunk.

        Args:
            graph: The graph.
            layout: Its layout.

        Returns:
            The forms in use, and what they ask for.
        """
        chunk_form = np.zeros(len(layout.chunk_start), np.int32)
        nothing = Slices((GATHER,), chunk_form)
        if self.least_share > 1 or not layout.in_place.any():
            return nothing
        with self.lock:
            if len(self._slot_bytes) != len(graph.types):
                self._slot_bytes = slot_bytes(graph.types)
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
        forms = [GATHER]
        num_bytes, rows = 0, dict[int, int]()
        for type_id in np.unique(key_type[pattern[first] > 0]).tolist():
            own = np.flatnonzero(key_type == type_id)
            best = self._cover(type_id, can[first[own]], weight[own], table[type_id])
            for key, form in zip(own.tolist(), best, strict=True):
                if form == GATHER:
                    continue
                if form not in forms:
                    forms.append(form)
                chunks = np.flatnonzero(inverse == key)
                chunk_form[chunks] = forms.index(form)
                num_bytes += int(weight[key] * table[type_id][list(form)].sum())
                for kind, end in _ends(graph, layout, chunks, type_id, form):
                    rows[kind] = max(rows.get(kind, 0), end)
        return Slices(tuple(forms), chunk_form, num_bytes, rows)

    def _cover(
        self, type_id: int, can: np.ndarray, weight: np.ndarray, row_bytes: np.ndarray
    ) -> list[Form]:
        """Finds the best known form of each pattern, after adding those that pay."""
        with self.lock:
            known = self._forms.setdefault(type_id, [])
            total = weight.sum() * row_bytes.sum()
            best, now = _best(can, known, row_bytes)
            while len(known) < _FORMS:
                options = {tuple(np.flatnonzero(each).tolist()) for each in can}
                gains = {
                    form: float(
                        weight @ np.maximum(_read(can, form, row_bytes) - now, 0)
                    )
                    for form in sorted(options - {GATHER} - set(known))
                }
                form = max(gains, key=lambda each: gains[each], default=GATHER)
                if gains.get(form, 0) < max(self.least_share * total, 1):
                    break
                known.append(form)
                best, now = _best(can, known, row_bytes)
            return best


def slot_bytes(types: TypeTable) -> np.ndarray:
    """Returns bytes per type and slot; 0 for those that are always gathered.

    These are the slots of padded lists, and those beyond the first `_MOST_SLOTS`.

    Args:
        types: The types.

    Returns:
        ``[T, slots] int64``.
    """
    most = max((len(each.operand_kinds) for each in types.types), default=0)
    found = np.zeros((len(types), min(most, _MOST_SLOTS)), np.int64)
    for row, node_type in zip(found, types.types, strict=True):
        for group in node_type.template.operands:
            slot = group.slots[0]
            if not group.stacked and slot < len(row):
                row[slot] = types.avals[node_type.operand_kinds[slot]].num_bytes
    return found


def _ends(
    graph: DataflowGraph,
    layout: Layout,
    chunks: np.ndarray,
    type_id: int,
    form: Form,
) -> list[tuple[int, int]]:
    """Array kind and end of the last slice, for each slot of a form."""
    start = graph.operand_start[layout.order[layout.chunk_start[chunks]]]
    kinds = graph.types.types[type_id].operand_kinds
    found = []
    for slot in form:
        first = layout.value_row[graph.operands[start + slot]]
        found.append((kinds[slot], int((first + layout.chunk_width[chunks]).max())))
    return found


def _read(can: np.ndarray, form: Form, row_bytes: np.ndarray) -> np.ndarray:
    """Bytes that a node of each pattern reads in place by a form; 0 if it cannot."""
    slots = list(form)
    return can[:, slots].all(axis=1) * row_bytes[slots].sum()


def _best(
    can: np.ndarray, known: list[Form], row_bytes: np.ndarray
) -> tuple[list[Form], np.ndarray]:
    """The form that reads most bytes in place for each pattern, and the bytes."""
    best = [GATHER] * len(can)
    most = np.zeros(len(can), np.int64)
    for form in known:
        read = _read(can, form, row_bytes)
        for k in np.flatnonzero(read > most):
            best[k] = form
        most = np.maximum(most, read)
    return best, most
