"""The types of a model as they run, some divided into a hoisted part and the rest."""

import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from edbatch.cell.hoisted_cell import HoistedCell, hoisted_cell
from edbatch.errors import PickleError
from edbatch.graph.node_type import CallTemplate, NodeType, Padding, Slots
from edbatch.graph.type_table import TypeTable
from edbatch.schedule.hoist import NONE, Numbers

# The parts of a type that the table of types as they run may hold.
WHOLE, HOISTED, REST = "whole", "ahead", "rest"
Part = tuple[int, str]  # a recorded type, and which part of it

# A type is divided if the products of its external inputs read at least so many numbers
# of parameters, and so many for each number that they hand on to a batch, and if it has
# so many batches. Narrow batches read much for little, and many batches read it often.
# Lattices gain (see `docs/results-memory.md`); child-sum trees, with few and wide
# batches, and cells of 64, whose parameters stay in the cache, would lose.
_LEAST_PARAMETERS = 1 << 15
_LEAST_SHARE = 8
_LEAST_BATCHES = 32


class HoistedTable(TypeTable):
    """The types as they run; see `HoistedTypes`.

    Attributes:
        split: The types that the table belongs to.
    """

    def __init__(self, recorded: TypeTable, split: "HoistedTypes") -> None:
        super().__init__(recorded.params_spec, recorded.model)
        self.share_kinds(recorded)
        self.split = split

    def _register(self) -> None:
        """Does nothing: pickles find the recorded types."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the recorded types, and which of them are divided."""
        return _table_of, (self.split,)


class HoistedTypes:
    """The types of one model as they run, shared by the threads that plan for it.

    Whether a type is divided is decided by the first minibatch that has it; after
    `freeze`, other types are not divided.

    Args:
        recorded: The types as they were recorded; the table may grow.
        always: Whether to divide every cell that can be, not only where it pays.

    Attributes:
        table: The types as they run; array kinds are those of the recorded ones.
        recorded: The types as they were recorded.
        parts: Which part of which recorded type each type of the table is.
    """

    def __init__(self, recorded: TypeTable, *, always: bool = False) -> None:
        self.table = HoistedTable(recorded, self)
        self.recorded = recorded
        self.parts: list[Part] = []
        self._place: dict[Part, int] = {}
        self._always = always
        self._decided = np.zeros(0, np.bool_)
        self._frozen = False
        self._rest: list[int] = []
        self._hoisted: list[int] = []
        self._numbers: Numbers | None = None
        self._lock = threading.RLock()
        with recorded.lock:
            _all_of(recorded).add(self)

    def __copy__(self) -> "HoistedTypes":
        """Returns the object itself, as for tables of types."""
        return self

    def __deepcopy__(self, memo: Any) -> "HoistedTypes":
        """Returns the object itself, as for tables of types."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the recorded types, and which of them are divided."""
        with self._lock:
            decided = tuple(self._decided.tolist())
            rest, hoisted = tuple(self._rest), tuple(self._hoisted)
            parts = tuple(self.parts)
            how = self._always, self._frozen
        return _load, (self.recorded, how, parts, decided, rest, hoisted)

    def freeze(self) -> None:
        """Divides no type any more that is not divided by now."""
        with self._lock:
            self._frozen = True

    def divided(self) -> tuple[int, ...]:
        """Returns the recorded types that are divided."""
        with self._lock:
            return tuple(k for k, each in enumerate(self._hoisted) if each != NONE)

    def place(self, type_id: int, part: str) -> int:
        """Returns the position of a part of a recorded type.

        Args:
            type_id: A recorded type.
            part: `WHOLE`, `HOISTED` or `REST`.

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
        rest: Sequence[int],
        hoisted: Sequence[int],
    ) -> None:
        """Makes the types of a pickle again, in the same order."""
        for type_id, part in parts:
            if part == WHOLE:
                self._add(type_id, part, self.recorded.types[type_id])
            elif part == HOISTED:  # the rest comes next
                self._divide_again(type_id)
        self._decided = np.array(decided, np.bool_)
        self._rest, self._hoisted = list(rest), list(hoisted)
        if any(each != NONE for each in hoisted):
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
            The positions; None if no type is divided yet.
        """
        with self._lock:
            if len(self._rest) < len(self.recorded):
                self._extend()
            if not (self._frozen or self._decided[batch_type].all()):
                for type_id in np.unique(batch_type).tolist():
                    if not self._decided[type_id]:
                        self._decide(type_id, batch_size[batch_type == type_id])
            return self._numbers

    def _extend(self) -> None:
        """Takes over types that were recorded since."""
        for node_type in self.recorded.types[len(self._rest) :]:
            whole = (len(self._rest), WHOLE)
            own = self._place.get(whole)
            self._rest.append(self._add(*whole, node_type) if own is None else own)
            self._hoisted.append(NONE)
        decided = np.zeros(len(self._rest), np.bool_)
        decided[: len(self._decided)] = self._decided
        self._decided = decided
        if self._numbers is not None:
            self._number()

    def _number(self) -> None:
        self._numbers = Numbers(
            np.array(self._rest, np.int32), np.array(self._hoisted, np.int32)
        )

    def _decide(self, type_id: int, sizes: np.ndarray) -> None:
        """Divides a type if that pays for batches of these sizes."""
        self._decided[type_id] = True
        node_type = self.recorded.types[type_id]
        if not self._always and len(sizes) < _LEAST_BATCHES:
            return
        cell = hoisted_cell(node_type, self.recorded)
        if cell is None:
            return
        handed_on = sum(math.prod(each.shape) for each in cell.vectors)
        least = max(_LEAST_PARAMETERS, _LEAST_SHARE * float(sizes.mean()) * handed_on)
        pays = cell.parameters_read >= least
        if not (self._always or pays):
            return
        self._divide(type_id, cell)
        self._hoisted[type_id] = self._place[type_id, HOISTED]
        self._rest[type_id] = self._place[type_id, REST]
        self._number()

    def _divide(self, type_id: int, cell: HoistedCell | None = None) -> bool:
        """Adds both parts of a type, unless they are there; False if it has none."""
        node_type = self.recorded.types[type_id]
        cell = cell or hoisted_cell(node_type, self.recorded)
        if cell is None:
            return False
        if (type_id, HOISTED) not in self._place:
            number = self.table.kinds.number
            kinds = tuple(number(each.shape, each.dtype) for each in cell.vectors)
            self._add(type_id, HOISTED, self._before(node_type, cell, kinds))
            self._add(type_id, REST, self._after(node_type, cell, kinds))
        return True

    def _before(
        self, node_type: NodeType, cell: HoistedCell, kinds: tuple[int, ...]
    ) -> NodeType:
        """The type of the hoisted part."""
        template = node_type.template
        paddings = [each for each in template.paddings if each.kind == "external"]

        def hoisted(params: Any, externals: Any, **masks: Any) -> Any:
            own = [masks[each.mask] for each in paddings]
            return cell.precompute(params, externals, own)

        return replace(
            node_type,
            key=replace(node_type.key, cell=f"{node_type.key.cell}.ahead", arity=0),
            function=hoisted,
            template=self._template((), template.externals, paddings),
            operand_kinds=(),
            output_kinds=kinds,
            output_tree=jax.tree.structure([0] * len(kinds)),
        )

    def _after(
        self, node_type: NodeType, cell: HoistedCell, kinds: tuple[int, ...]
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


def _all_of(recorded: TypeTable) -> "weakref.WeakSet[HoistedTypes]":
    """Everything that runs the types of a table."""
    found: weakref.WeakSet[HoistedTypes] = weakref.WeakSet()
    return recorded.derived(HoistedTypes, lambda: found)


def _table_of(split: HoistedTypes) -> TypeTable:
    return split.table


def _load(
    recorded: TypeTable,
    how: tuple[bool, bool],
    parts: Sequence[Part],
    decided: Sequence[bool],
    rest: Sequence[int],
    hoisted: Sequence[int],
) -> HoistedTypes:
    """Finds the types of a pickle among those of this process, or makes them again."""
    with recorded.lock:
        for each in list(_all_of(recorded)):
            same = (each._always, each._frozen) == how
            same = same and each.parts[: len(parts)] == list(parts)
            if same and (not each._frozen or each._hoisted[: len(rest)] == [*hoisted]):
                return each
        always, frozen = how
        found = HoistedTypes(recorded, always=always)
        found._restore(parts, decided, rest, hoisted)
        found._frozen = frozen
        return found
