"""The types of a model, with those of what runs ahead of them."""

import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from edbatch.cell.split_cell import SplitCell, split_cell
from edbatch.errors import PickleError
from edbatch.graph.node_type import CallTemplate, NodeType, Padding, Slots
from edbatch.graph.type_table import TypeTable

NONE = -1

# The parts of a type that the table of split types may hold.
WHOLE, AHEAD, REST = "whole", "ahead", "rest"
Part = tuple[int, str]  # a recorded type, and which part of it

# A type is split if its cell's products read at least so many numbers of parameters,
# and so many for each number that they hand on to a batch, and if it has so many
# batches. Narrow batches read much for little, and many batches read it often. Lattices
# gain (see `docs/results-memory.md`); child-sum trees, with few and wide batches, and
# cells of 64, whose parameters stay in the cache, would lose.
_LEAST_PARAMETERS = 1 << 15
_LEAST_SHARE = 8
_LEAST_BATCHES = 32


class Numbers(NamedTuple):
    """The positions of a model's ``T`` types in the table of split ones.

    Attributes:
        own: Of each type, or of what is left of it.
        ahead: Of what runs ahead of it, or `NONE`.
    """

    own: np.ndarray  # [T] int32
    ahead: np.ndarray  # [T] int32


class SplitTable(TypeTable):
    """The types as they run; see `SplitTypes`.

    Attributes:
        split: What they were made by.
    """

    def __init__(self, recorded: TypeTable, split: "SplitTypes") -> None:
        super().__init__(recorded.params_spec, recorded.model)
        self.share_kinds(recorded)
        self.split = split

    def _register(self) -> None:
        """Does nothing: pickles find the recorded types."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the recorded types, and which of them are split."""
        return _table_of, (self.split,)


class SplitTypes:
    """The types of one model as they run, shared by the threads that plan for it.

    Whether a type is split is decided by the first minibatch that has it.

    Args:
        recorded: The types as they were recorded; the table may grow.
        always: Whether to split all cells that can be, and not where it pays.

    Attributes:
        table: The types as they run; array kinds are those of the recorded ones.
        recorded: The types as they were recorded.
        parts: Which part of which recorded type each type of the table is.
    """

    def __init__(self, recorded: TypeTable, *, always: bool = False) -> None:
        self.table = SplitTable(recorded, self)
        self.recorded = recorded
        self.parts: list[Part] = []
        self._place: dict[Part, int] = {}
        self._always = always
        self._decided = np.zeros(0, np.bool_)
        self._own: list[int] = []
        self._ahead: list[int] = []
        self._numbers: Numbers | None = None
        self._lock = threading.RLock()
        with recorded._lock:
            _all_of(recorded).add(self)

    def __copy__(self) -> "SplitTypes":
        """Returns the object itself, as for tables of types."""
        return self

    def __deepcopy__(self, memo: Any) -> "SplitTypes":
        """Returns the object itself, as for tables of types."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the recorded types, and which of them are split."""
        with self._lock:
            decided = tuple(self._decided.tolist())
            own, ahead = tuple(self._own), tuple(self._ahead)
            parts = tuple(self.parts)
        return _load, (self.recorded, self._always, parts, decided, own, ahead)

    def place(self, type_id: int, part: str) -> int:
        """Returns the position of a part of a recorded type.

        Args:
            type_id: A recorded type.
            part: `WHOLE`, `AHEAD` or `REST`.

        Returns:
            Its position in the table.

        Raises:
            PickleError: The type's cell has no such part.
        """
        with self._lock:
            self._extend()
            if (type_id, part) not in self._place:
                self._divide_again(type_id)
            return self._place[type_id, part]

    def _divide_again(self, type_id: int) -> None:
        """Adds both parts of a type that was divided elsewhere."""
        if not self._divide(type_id):
            raise PickleError(
                "a plan from elsewhere divides cell"
                f" {self.recorded.types[type_id].key.cell!r}, which cannot be divided"
                " here; usually its code was changed since; plan again"
            )

    def _restore(
        self,
        parts: Sequence[Part],
        decided: Sequence[bool],
        own: Sequence[int],
        ahead: Sequence[int],
    ) -> None:
        """Makes the types of a pickle again, in the same order."""
        for type_id, part in parts:
            if part == WHOLE:
                self._add(type_id, part, self.recorded.types[type_id])
            elif part == AHEAD:  # the rest comes next
                self._divide_again(type_id)
        self._decided = np.array(decided, np.bool_)
        self._own, self._ahead = list(own), list(ahead)
        if any(each != NONE for each in ahead):
            self._number()

    def _add(self, type_id: int, part: str, node_type: NodeType) -> int:
        """Adds a part of a type to the table."""
        place = self._place[type_id, part] = self.table.add(node_type).id
        self.parts.append((type_id, part))
        return place

    def numbers(self, batch_type: np.ndarray, batch_size: np.ndarray) -> Numbers | None:
        """Returns the positions of all types that are known by now.

        Args:
            batch_type: The types of a minibatch's batches; ``[S] int32``.
            batch_size: Their numbers of nodes; ``[S]``.

        Returns:
            The positions; None if no type is split yet.
        """
        with self._lock:
            if len(self._own) < len(self.recorded):
                self._extend()
            if not self._decided[batch_type].all():
                for type_id in np.unique(batch_type).tolist():
                    if not self._decided[type_id]:
                        self._decide(type_id, batch_size[batch_type == type_id])
            return self._numbers

    def _extend(self) -> None:
        """Takes over types that were recorded since."""
        for node_type in self.recorded.types[len(self._own) :]:
            whole = (len(self._own), WHOLE)
            own = self._place.get(whole)
            self._own.append(self._add(*whole, node_type) if own is None else own)
            self._ahead.append(NONE)
        decided = np.zeros(len(self._own), np.bool_)
        decided[: len(self._decided)] = self._decided
        self._decided = decided
        if self._numbers is not None:
            self._number()

    def _number(self) -> None:
        self._numbers = Numbers(
            np.array(self._own, np.int32), np.array(self._ahead, np.int32)
        )

    def _decide(self, type_id: int, sizes: np.ndarray) -> None:
        """Splits a type if that pays for batches of these sizes."""
        self._decided[type_id] = True
        node_type = self.recorded.types[type_id]
        if not self._always and len(sizes) < _LEAST_BATCHES:
            return
        cell = split_cell(node_type, self.recorded)
        if cell is None:
            return
        handed_on = sum(math.prod(each.shape) for each in cell.vectors)
        least = max(_LEAST_PARAMETERS, _LEAST_SHARE * float(sizes.mean()) * handed_on)
        pays = cell.parameters_read >= least
        if not (self._always or pays):
            return
        self._divide(type_id, cell)
        self._ahead[type_id] = self._place[type_id, AHEAD]
        self._own[type_id] = self._place[type_id, REST]
        self._number()

    def _divide(self, type_id: int, cell: SplitCell | None = None) -> bool:
        """Adds both parts of a type, unless they are there; False if it has none."""
        node_type = self.recorded.types[type_id]
        cell = cell or split_cell(node_type, self.recorded)
        if cell is None:
            return False
        if (type_id, AHEAD) not in self._place:
            table = self.table
            kinds = tuple(table.kind(each.shape, each.dtype) for each in cell.vectors)
            self._add(type_id, AHEAD, self._before(node_type, cell, kinds))
            self._add(type_id, REST, self._after(node_type, cell, kinds))
        return True

    def _before(
        self, node_type: NodeType, cell: SplitCell, kinds: tuple[int, ...]
    ) -> NodeType:
        """The type of what runs ahead."""
        template = node_type.template
        paddings = [each for each in template.paddings if each.kind == "external"]

        def ahead(params: Any, externals: Any, **masks: Any) -> Any:
            return cell.ahead(params, externals, [masks[p.mask] for p in paddings])

        return replace(
            node_type,
            key=replace(node_type.key, cell=f"{node_type.key.cell}.ahead", arity=0),
            function=ahead,
            template=self._template((), template.externals, paddings),
            operand_kinds=(),
            output_kinds=kinds,
            output_tree=jax.tree.structure([0] * len(kinds)),
        )

    def _after(
        self, node_type: NodeType, cell: SplitCell, kinds: tuple[int, ...]
    ) -> NodeType:
        """The type of the rest, which reads one operand more per kind."""
        template = node_type.template
        first = len(node_type.operand_kinds)
        added = tuple(Slots((first + k,)) for k in range(len(kinds)))

        def rest(params: Any, operands: Any, externals: Any, **masks: Any) -> Any:
            own = [masks[each.mask] for each in template.paddings]
            return cell.rest(params, operands, externals, own)

        return replace(
            node_type,
            function=rest,
            template=self._template(
                (*template.operands, *added), template.externals, template.paddings
            ),
            operand_kinds=(*node_type.operand_kinds, *kinds),
        )

    def _template(
        self,
        operands: Sequence[Slots],
        externals: Sequence[Slots],
        paddings: Sequence[Padding],
    ) -> CallTemplate:
        """How to call the functions above: with lists of operands and externals."""
        params = self.recorded.params
        leaves = [("static", None) if params is None else ("parameter", params)]
        leaves += [("operand", k) for k in range(len(operands))]
        leaves += [("external", k) for k in range(len(externals))]
        lists = [[0] * len(operands)] if operands else []
        arguments = (0, *lists, [0] * len(externals))
        return CallTemplate(
            jax.tree.structure((arguments, {})),
            tuple(leaves),
            tuple(operands),
            tuple(externals),
            tuple(paddings),
        )


def _all_of(recorded: TypeTable) -> "weakref.WeakSet[SplitTypes]":
    """Everything that runs the types of a table."""
    found: weakref.WeakSet[SplitTypes] = weakref.WeakSet()
    return recorded.derived(SplitTypes, lambda: found)


def _table_of(split: SplitTypes) -> TypeTable:
    return split.table


def _load(
    recorded: TypeTable,
    always: bool,
    parts: Sequence[Part],
    decided: Sequence[bool],
    own: Sequence[int],
    ahead: Sequence[int],
) -> SplitTypes:
    """Finds the types of a pickle among those of this process, or makes them again."""
    with recorded._lock:
        for each in list(_all_of(recorded)):
            same = each._always == always
            if same and each.parts[: len(parts)] == list(parts):
                return each
        found = SplitTypes(recorded, always=always)
        found._restore(parts, decided, own, ahead)
        return found
