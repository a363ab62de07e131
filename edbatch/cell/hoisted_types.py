"""The types of a model as they run: whole, divided, or shared by a family.

A type may be divided into a hoisted part and the rest, and types that differ only in
their parameters may run as one (`edbatch.cell.shared_types`).
"""

import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from edbatch.cell.hoisted_cell import HoistedCell, hoisted_cell
from edbatch.cell.indexed_cell import indexed_type
from edbatch.cell.part_types import call_template, hoisted_part, rest_part
from edbatch.cell.shared_types import ALONE, INDEXED, Shared, SharedTypes
from edbatch.errors import PickleError
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.node_type import NodeType
from edbatch.graph.type_table import TypeTable
from edbatch.schedule.hoist import NONE, TypePositions
from edbatch.schedule.interrupt import deferred_interrupt

# The parts of a type that the table of types as they run may contain.
WHOLE, HOISTED, REST = "whole", "hoisted", "rest"


class Part(NamedTuple):
    """A part of a recorded type.

    Attributes:
        type_id: The type; for types that share, the first type of their family.
        part: `WHOLE`, `HOISTED` or `REST`.
        kin: Index of the `Relatives` that the type shares with, among those of
            `Kinship.relatives`; `ALONE` if it shares with none; or `INDEXED`.
    """

    type_id: int
    part: str
    kin: int = ALONE


# A type is divided if all three hold: the products of its external inputs read at least
# `_LEAST_PARAMETERS` elements of parameters; they read at least `_LEAST_SHARE` elements
# of parameters per element that is handed on to a batch of average size; and the type
# has at least `_LEAST_BATCHES` batches. In narrow batches parameters are read for few
# results, and with many batches they are read often. Lattices gain (see
# `docs/results-memory.md`). Child-sum trees, with few and wide batches, and cells of
# hidden size 64, whose parameters stay in the cache, would lose.
_LEAST_PARAMETERS = 1 << 15
_LEAST_SHARE = 8
_LEAST_BATCHES = 32


class _How(NamedTuple):
    """Permitted transformations of types; see `HoistedTypes`."""

    always: bool
    hoists: bool
    shares: bool
    anticipates: bool


class HoistedTable(TypeTable):
    """The types as they run; see `HoistedTypes`.

    Attributes:
        split: The types that the table belongs to.

    Example:
        >>> import edbatch as eb
        >>> batched = eb.batch(eb.cell(lambda params, x: params * x), params=2.0)
        >>> split = HoistedTypes(batched.graph([1.0]).types)
        >>> HoistedTable(split.recorded, split).split is split
        True
    """

    def __init__(self, recorded: TypeTable, split: "HoistedTypes") -> None:
        super().__init__(recorded.params_spec, recorded.model)
        self.share_kinds(recorded)
        self.split = split

    def _register(self) -> None:
        """Does nothing: pickles look up the recorded types."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the recorded types, and which of them are divided."""
        return _table_of, (self.split,)


class HoistedTypes:
    """The types of one model as they run, shared by the threads that plan for it.

    Whether a type is divided, and whether it shares, is decided by the first minibatch
    that has it. After `freeze`, no further types are divided, and types only join
    existing families.

    Args:
        recorded: The types as they were recorded; the table may grow.
        always: Whether to divide every cell that can be divided, not only if it pays.
        hoists: Whether to divide cells at all.
        shares: Whether types that differ only in their parameters run as one.
        anticipates: Whether they share from the first type on; see `SharedTypes`.

    Attributes:
        table: The types as they run; their array kinds are those of the recorded types.
        recorded: The types as they were recorded.
        parts: For each type of the table, which part of which recorded type it is.

    Example:
        >>> import edbatch as eb
        >>> batched = eb.batch(eb.cell(lambda params, x: params * x), params=2.0)
        >>> types = HoistedTypes(batched.graph([1.0]).types)
        >>> types.divided()
        ()
    """

    def __init__(
        self,
        recorded: TypeTable,
        *,
        always: bool = False,
        hoists: bool = True,
        shares: bool = True,
        anticipates: bool = False,
    ) -> None:
        self.table = HoistedTable(recorded, self)
        self.recorded = recorded
        self.parts: list[Part] = []
        self._place: dict[Part, int] = {}
        self._how = _How(always, hoists, shares, anticipates)
        self._shared = SharedTypes(recorded, shares=shares, anticipates=anticipates)
        self._decided = np.zeros(0, np.bool_)
        self._frozen = False
        self._rest: list[int] = []
        self._hoisted: list[int] = []
        self._positions: TypePositions | None = None
        self._lock = threading.RLock()
        with recorded.lock:
            _all_of(recorded).add(self)

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<HoistedTypes: {len(self.recorded)} types run as {len(self.table)}>"

    def __copy__(self) -> "HoistedTypes":
        """Returns the object itself, as type tables do."""
        return self

    def __deepcopy__(self, memo: Any) -> "HoistedTypes":
        """Returns the object itself, as type tables do."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the recorded types, and which of them are divided."""
        with self._lock:
            decided = tuple(self._decided.tolist())
            rest, hoisted = tuple(self._rest), tuple(self._hoisted)
            parts = tuple(self.parts)
            shared = self._shared.all()
            how = self._how, self._frozen
        return _load, (self.recorded, how, parts, decided, rest, hoisted, shared)

    def scratch(self) -> "HoistedTypes":
        """Returns a copy for the same recorded types that decides independently."""
        with self._lock:
            found = HoistedTypes(self.recorded, **self._how._asdict())
            for part, node_type in zip(self.parts, self.table.types, strict=True):
                found._add(part, node_type)  # with the same functions, traced already
            own = self.parts, self._decided.tolist(), self._rest, self._hoisted
            found._restore(*own, self._shared.all())
            found._frozen = self._frozen
        with self.recorded.lock:  # pickles only find the types of the model
            _all_of(self.recorded).discard(found)
        return found

    def freeze(self) -> None:
        """Stops dividing types; types that are divided stay divided."""
        with self._lock:
            self._frozen = True

    @property
    def are_recorded(self) -> bool:
        """Whether all types run as they were recorded, and thus with the same ids."""
        with self._lock:
            return self._positions is None

    def divided(self) -> tuple[int, ...]:
        """Returns the recorded types that are divided."""
        with self._lock:
            return tuple(k for k, each in enumerate(self._hoisted) if each != NONE)

    def families(self) -> dict[int, tuple[int, ...]]:
        """Returns the recorded types of each family, by its first type."""
        with self._lock:
            found: dict[int, list[int]] = {}
            for type_id, (first, kin) in enumerate(self._shared.all()):
                if kin not in (ALONE, INDEXED):
                    found.setdefault(first, []).append(type_id)
            return {first: tuple(each) for first, each in found.items()}

    def place(self, part: Part) -> int:
        """Returns the position in the table of a part of a recorded type.

        Args:
            part: The part.

        Returns:
            Its position in the table.

        Raises:
            PickleError: The type's cell has no such part.
        """
        with self._lock:
            self._catch_up()
            if part.kin not in (ALONE, INDEXED):
                first, _ = self._shared.family(part.type_id, part.kin)
                part = part._replace(type_id=first.id)
            if part not in self._place:
                with deferred_interrupt():
                    self._add_again(part)
            return self._place[part]

    def _add_again(self, part: Part) -> None:
        """Adds a part of a type that was divided or shared elsewhere."""
        if part.kin not in (ALONE, INDEXED):
            _, family = self._shared.family(part.type_id, part.kin)
            if family is None:
                raise PickleError(
                    "this plan was made elsewhere and runs layers of cell"
                    f" {self._cell_name(part)!r} in one loop, which they cannot share"
                    " here; usually the cell's code was changed since; make the plan"
                    " again"
                )
        own = part.type_id, part.kin
        if part.part == WHOLE:
            self._whole(own)
        elif not self._divide(own):
            raise PickleError(
                "this plan was made elsewhere and divides cell"
                f" {self._cell_name(part)!r}, which cannot be divided here; usually the"
                " cell's code was changed since; make the plan again"
            )

    def _cell_name(self, part: Part) -> str:
        return self.recorded.types[part.type_id].key.cell

    def _restore(
        self,
        parts: Sequence[Part],
        decided: Sequence[bool],
        rest: Sequence[int],
        hoisted: Sequence[int],
        shared: Sequence[Shared],
    ) -> None:
        """Recreates the types of a pickle, in the same order."""
        self._shared.extend()
        for type_id, (_, kin) in enumerate(shared):
            if kin == INDEXED and self._shared.indexed(type_id):
                self._shared.index(type_id)
            elif kin != ALONE:
                self._shared.family(type_id, kin)
        for part in parts:
            if part.part != REST and part not in self._place:  # added with `HOISTED`
                self._add_again(part)
        self._decided = np.array(decided, np.bool_)
        self._rest, self._hoisted = list(rest), list(hoisted)
        self._number()

    def _add(self, part: Part, node_type: NodeType) -> int:
        """Adds a part of a type to the table."""
        with deferred_interrupt(short=True):
            place = self._place[part] = self.table.add(node_type).id
            self.parts.append(part)
        return place

    def _whole(self, own: Shared) -> int:
        """The position of a type, or of the type that its family runs as."""
        part = Part(own[0], WHOLE, own[1])
        found = self._place.get(part)
        return self._add(part, self._type(own)) if found is None else found

    def _type(self, own: Shared) -> NodeType:
        """A recorded type, or the type that its family runs as."""
        type_id, kin = own
        if kin == ALONE:
            return self.recorded.types[type_id]
        if kin == INDEXED:
            return self._indexed_type(type_id)
        first, family = self._shared.family(type_id, kin)
        return replace(first, family=family)

    def _indexed_type(self, type_id: int) -> NodeType:
        """The type whose chunks each read one entry of its parameters."""
        node_type, cell = self.recorded.types[type_id], self._shared.indexed(type_id)
        assert cell is not None, "an indexed type indexes a parameter"
        own = node_type.template
        template = call_template(
            self.recorded.params, own.operands, own.externals, own.paddings
        )
        return indexed_type(node_type, cell, template)

    def node_members(self, graph: DataflowGraph) -> np.ndarray | None:
        """Returns the family member whose parameters each node of a graph reads.

        Args:
            graph: The recorded graph.

        Returns:
            The position of each node's type in its family, or the entry that it reads;
            None if no type shares. ``[N] int32``.
        """
        with self._lock:
            self._catch_up()  # plans are looked up before anything is decided
            if not self._shared.any:
                return None
            members, indexed = self._shared.members(), self._shared.index_types()
        found: np.ndarray = members[graph.node_type]
        for type_id, cell in indexed.items():
            nodes = np.flatnonzero(graph.node_type == type_id)
            rows = graph.external_rows[graph.external_start[nodes] + cell.slot]
            kind = self.recorded.types[type_id].external_kinds[cell.slot]
            if len(nodes):
                found[nodes] = cell.members(graph.externals[kind][rows])
        return found

    def index_values(self, graph: DataflowGraph) -> bytes:
        """Returns the values of external inputs that affect how chunks are cut.

        Args:
            graph: The graph of a minibatch.

        Returns:
            The values, which distinguish minibatches of one structure; empty if there
            are none.
        """
        with self._lock:
            indexed = bool(self._shared.index_types())
        members = self.node_members(graph) if indexed else None
        return b"" if members is None else members.tobytes()

    def run_as(self, types: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the type that each recorded type runs as, if no type is divided.

        For waves, in which cells are never divided (``hoists=False``).

        Args:
            types: Types for which to decide now whether they share; ``[n] int32``.

        Returns:
            The position in the table of the type that each recorded type runs as, and
            the member whose parameters it reads, -1 if it has no family; ``[T] int32``
            each.
        """
        with self._lock:
            self.decide_and_place(types, np.ones(len(types), np.int64))
            places = np.array(self._rest, np.int32)
            shares = [self.table.types[each].family is not None for each in self._rest]
            return places, np.where(shares, self._shared.members(), -1).astype(np.int32)

    def decide_and_place(
        self, batch_type: np.ndarray, batch_size: np.ndarray
    ) -> TypePositions | None:
        """Decides about a minibatch's types; returns the positions of all types.

        Args:
            batch_type: The types of a minibatch's batches; ``[S] int32``.
            batch_size: The number of nodes of each batch; ``[S]``.

        Returns:
            The positions; None if no type is divided or shared yet.
        """
        with self._lock:
            self._catch_up()
            if not (self._frozen or self._decided[batch_type].all()):
                with deferred_interrupt():  # otherwise tables could disagree for good
                    self._decide_all(batch_type, batch_size)
            return self._positions

    def _decide_all(self, batch_type: np.ndarray, batch_size: np.ndarray) -> None:
        """Decides about the types of a minibatch."""
        types = np.unique(batch_type[~self._decided[batch_type]]).tolist()
        if any([self._shared.decide(type_id) for type_id in types]):
            self._place_families()
        sizes: dict[Shared, list[int]] = {}
        for type_id, size in zip(batch_type.tolist(), batch_size.tolist(), strict=True):
            if not self._decided[type_id]:
                sizes.setdefault(self._shared.of(type_id), []).append(size)
        for own, each in sizes.items():
            self._decide(own, each)
        self._decided[types] = True
        self._number()

    def _catch_up(self) -> None:
        """Adds the types recorded since the last call, if there are any."""
        if len(self._rest) < len(self.recorded):
            with deferred_interrupt():
                self._extend()

    def _extend(self) -> None:
        """Adds the types recorded since the last call."""
        self._shared.extend()
        decided = np.zeros(len(self._shared), np.bool_)
        decided[: len(self._decided)] = self._decided
        self._decided = decided
        for type_id in range(len(self._rest), len(self._shared)):
            own = self._shared.of(type_id)
            self._rest.append(NONE)
            self._hoisted.append(NONE)
            self._put(type_id, own)
            self._decided[type_id] = own[1] != ALONE
        if self._positions is not None:
            self._number()

    def _place_families(self) -> None:
        """Makes the types of new families run as one, including earlier types."""
        for type_id in range(len(self._rest)):
            own = self._shared.of(type_id)
            if own[1] != ALONE:
                self._put(type_id, own)

    def _put(self, type_id: int, own: Shared) -> None:
        """Places a recorded type: on its own, or as its family runs."""
        hoisted = self._place.get(Part(own[0], HOISTED, own[1]))
        if own[1] == ALONE or hoisted is None:
            self._rest[type_id], self._hoisted[type_id] = self._whole(own), NONE
        else:
            self._rest[type_id] = self._place[Part(own[0], REST, own[1])]
            self._hoisted[type_id] = hoisted

    def _number(self) -> None:
        some = self._shared.any or any(each != NONE for each in self._hoisted)
        self._positions = None
        if some:
            self._positions = TypePositions(
                np.array(self._rest, np.int32),
                np.array(self._hoisted, np.int32),
            )

    def _decide(self, own: Shared, sizes: Sequence[int]) -> None:
        """Divides a type, or a family, if that pays for batches of these sizes."""
        always = self._how.always
        if not self._how.hoists or (not always and len(sizes) < _LEAST_BATCHES):
            return
        cell = hoisted_cell(self._type(own), self.recorded)
        if cell is None:
            return
        handed_on = sum(math.prod(each.shape) for each in cell.vectors)
        least = max(_LEAST_PARAMETERS, _LEAST_SHARE * float(np.mean(sizes)) * handed_on)
        if not (always or cell.parameters_read >= least):
            return
        self._divide(own, cell)
        for type_id in range(len(self._rest)):
            if self._shared.of(type_id) == own:
                self._hoisted[type_id] = self._place[Part(own[0], HOISTED, own[1])]
                self._rest[type_id] = self._place[Part(own[0], REST, own[1])]

    def _divide(self, own: Shared, cell: HoistedCell | None = None) -> bool:
        """Adds both parts of a type, unless they exist; False if it has no parts."""
        node_type = self._type(own)
        cell = cell or hoisted_cell(node_type, self.recorded)
        if cell is None:
            return False
        before, after = Part(own[0], HOISTED, own[1]), Part(own[0], REST, own[1])
        if before not in self._place:
            number = self.table.kinds.number
            kinds = tuple(number(each.shape, each.dtype) for each in cell.vectors)
            params = self.recorded.params
            hoisted = hoisted_part(node_type, cell, kinds, params)
            rest = rest_part(node_type, cell, kinds, params)
            with deferred_interrupt(short=True):  # never one without the other
                self._add(before, hoisted)
                self._add(after, rest)
        return True


def _all_of(recorded: TypeTable) -> "weakref.WeakSet[HoistedTypes]":
    """Returns all `HoistedTypes` of a recorded table."""
    found: weakref.WeakSet[HoistedTypes] = weakref.WeakSet()
    return recorded.derived(HoistedTypes, lambda: found)


def _table_of(split: HoistedTypes) -> TypeTable:
    return split.table


def _load(
    recorded: TypeTable,
    how: tuple["_How", bool],
    parts: Sequence[Part],
    decided: Sequence[bool],
    rest: Sequence[int],
    hoisted: Sequence[int],
    shared: Sequence[Shared],
) -> HoistedTypes:
    """Finds the types of a pickle among those of this process, or recreates them."""
    with recorded.lock:
        for each in list(_all_of(recorded)):
            same = (each._how, each._frozen) == how
            same = same and each.parts[: len(parts)] == list(parts)
            if same and (not each._frozen or each._hoisted[: len(rest)] == [*hoisted]):
                return each
        options, frozen = how
        found = HoistedTypes(recorded, **options._asdict())
        found._restore(parts, decided, rest, hoisted, shared)
        found._frozen = frozen
        return found
