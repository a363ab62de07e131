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

import numpy as np

from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.memory_planner.layout import Layout

Form = tuple[int, ...]  # operand slots, ascending
GATHER: Form = ()

_FORMS = 2


class Forms:
    """The forms of one model's types, shared by the threads that plan for it.

    Attributes:
        least_share: A form is added if it reads at least this share of the bytes that
            a minibatch's nodes of the type read, beyond what the known ones do; above
            1 for none.
    """

    def __init__(self, least_share: float = 0.25) -> None:
        self.least_share = least_share
        self._forms: dict[int, list[Form]] = {}
        self._lock = threading.Lock()

    def choose(
        self, graph: DataflowGraph, layout: Layout
    ) -> tuple[tuple[Form, ...], np.ndarray]:
        """Chooses the form of each chunk.

        Args:
            graph: The graph.
            layout: Its layout.

        Returns:
            The forms in use, and the position of each chunk's; ``[C] int32``.
        """
        forms = [GATHER]
        chunk_form = np.zeros(len(layout.chunk_start), np.int32)
        if self.least_share > 1:
            return tuple(forms), chunk_form
        chunk_type = graph.node_type[layout.order[layout.chunk_start]]
        for type_id in np.unique(chunk_type):
            own = np.flatnonzero(chunk_type == type_id)
            slot_bytes = _slot_bytes(graph, int(type_id))
            patterns, inverse = np.unique(
                layout.in_place[own, : len(slot_bytes)] & (slot_bytes > 0),
                axis=0,
                return_inverse=True,
            )
            weight = np.bincount(inverse, layout.chunk_size[own], len(patterns))
            best = self._cover(int(type_id), patterns, weight, slot_bytes)
            for pattern, form in enumerate(best):
                if form == GATHER:
                    continue
                if form not in forms:
                    forms.append(form)
                chunk_form[own[inverse == pattern]] = forms.index(form)
        return tuple(forms), chunk_form

    def _cover(
        self,
        type_id: int,
        patterns: np.ndarray,
        weight: np.ndarray,
        slot_bytes: np.ndarray,
    ) -> list[Form]:
        """Finds the best known form of each pattern, after adding those that pay."""
        with self._lock:
            known = self._forms.setdefault(type_id, [])
            total = weight.sum() * slot_bytes.sum()
            while len(known) < _FORMS:
                _, now = _best(patterns, known, slot_bytes)
                options = {tuple(np.flatnonzero(each).tolist()) for each in patterns}
                gains = {
                    form: float(
                        weight @ np.maximum(_read(patterns, form, slot_bytes) - now, 0)
                    )
                    for form in sorted(options - {GATHER} - set(known))
                }
                if not gains:
                    break
                form = max(gains, key=lambda each: gains[each])
                if gains[form] < max(self.least_share * total, 1):
                    break
                known.append(form)
            return _best(patterns, known, slot_bytes)[0]


def rows_read(
    graph: DataflowGraph,
    layout: Layout,
    forms: tuple[Form, ...],
    chunk_form: np.ndarray,
) -> dict[int, int]:
    """Finds how many rows arenas need for slices, which are as wide as their chunk.

    Args:
        graph: The graph.
        layout: Its layout.
        forms: Sets of operand slots that are read as slices.
        chunk_form: Which of them each chunk has.

    Returns:
        Rows by array kind.
    """
    needed: dict[int, int] = {}
    nodes = layout.order[layout.chunk_start]
    for position, form in enumerate(forms):
        for type_id in np.unique(graph.node_type[nodes[chunk_form == position]]):
            own = (chunk_form == position) & (graph.node_type[nodes] == type_id)
            for slot in form:
                values = graph.operands[graph.operand_start[nodes[own]] + slot]
                ends = layout.value_row[values] + layout.chunk_width[own]
                kind = graph.types.types[type_id].operand_kinds[slot]
                needed[kind] = max(needed.get(kind, 0), int(ends.max()))
    return needed


def bytes_sliced(
    graph: DataflowGraph,
    layout: Layout,
    forms: tuple[Form, ...],
    chunk_form: np.ndarray,
) -> int:
    """Counts the bytes that nodes read through slices; arguments as `rows_read`."""
    total = 0
    chunk_type = graph.node_type[layout.order[layout.chunk_start]]
    for position, form in enumerate(forms):
        for type_id in np.unique(chunk_type[chunk_form == position]):
            own = (chunk_form == position) & (chunk_type == type_id)
            each = int(_slot_bytes(graph, type_id)[list(form)].sum())
            total += each * int(layout.chunk_size[own].sum())
    return total


def _slot_bytes(graph: DataflowGraph, type_id: int) -> np.ndarray:
    """Bytes per slot; 0 for those of padded lists, which are always gathered."""
    node_type = graph.types.types[type_id]
    found = np.zeros(len(node_type.operand_kinds), np.int64)
    for group in node_type.template.operands:
        if not group.stacked:
            kind = node_type.operand_kinds[group.slots[0]]
            found[group.slots[0]] = graph.types.avals[kind].num_bytes
    return found


def _read(patterns: np.ndarray, form: Form, slot_bytes: np.ndarray) -> np.ndarray:
    """Bytes that a node of each pattern reads in place by a form; 0 if it cannot."""
    slots = list(form)
    return patterns[:, slots].all(axis=1) * slot_bytes[slots].sum()


def _best(
    patterns: np.ndarray, known: list[Form], slot_bytes: np.ndarray
) -> tuple[list[Form], np.ndarray]:
    """The form that reads most bytes in place for each pattern, and the bytes."""
    best = [GATHER] * len(patterns)
    most = np.zeros(len(patterns), np.int64)
    for form in known:
        read = _read(patterns, form, slot_bytes)
        for k in np.flatnonzero(read > most):
            best[k] = form
        most = np.maximum(most, read)
    return best, most
