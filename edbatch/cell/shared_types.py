"""Families: types of a model that share loops.

A family is made of types that differ in the path of their parameters alone, where
sharing saves more than it copies (`pays`):

- It saves the compilation of all of them but one, so there are `LEAST_TYPES` at least.
- It stacks the parameters of all members, met or not, in every call that is traced; and
  where they are kept between calls, twice the memory. Each type that shares pays for
  `_STACKED` bytes of it: a hundred copies of so much take as long as to compile a type.
  Where a cell indexes parameters that stand stacked, there is nothing to copy.
- A chunk copies its member's parameters. A product would read all of them anyway, but
  a look-up a few rows of its table, so tables have `_TABLES` bytes at most in all,
  which are copied in the time that a chunk takes in any case.

Types that are met later and fit join a family, or make one as soon as there are enough.
Waves meet the layers of a stack one after the other, and would compile once more for
each. So there a family is made with the first type whose parameters stand beside enough
others like them (`anticipates`), if to stack them copies no more than four types may.

Gain (docs/results.md, "Shared loops"): a stack of 48 layers has 5 loops in place of 98,
and its forward pass is compiled in 0.5 in place of 2.0 s. 10,000 inputs to as many
experts take half the time of single calls; a loop for each could not be compiled.
"""

import warnings
from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from edbatch.cell.indexed_cell import IndexedCell, indexed_cell, may_index
from edbatch.cell.members import Copies, count_copies
from edbatch.errors import ManyTypesWarning
from edbatch.graph.family import Family
from edbatch.graph.kinship import Kinship, Relatives
from edbatch.graph.node_type import NodeType
from edbatch.graph.parameters import describe
from edbatch.graph.type_table import TypeTable

LEAST_TYPES = 4
_STACKED = 2**25  # bytes per type
_TABLES = 2**14  # bytes of one member

MANY = 8  # types that cannot share are warned of

# In place of the number of a type's relatives:
ALONE = -1  # it shares with nobody
INDEXED = -2  # its nodes read one entry each of parameters (`indexed_cell`)
Shared = tuple[int, int]  # the first type of a family, or a type; which relatives


def pays(types: int, copies: Copies) -> bool:
    """Tells whether a family saves more than it copies.

    Args:
        types: Types that would share; others may be met later.
        copies: What it copies.

    Returns:
        Whether there are enough types, and few enough bytes.

    Example:
        >>> pays(2, Copies(stack=0, tables=0)), pays(4, Copies(2**20, 2**10))
        (False, True)
        >>> embeddings = Copies(stack=2**28, tables=0)
        >>> pays(4, embeddings), pays(8, embeddings)
        (False, True)
    """
    enough = types >= LEAST_TYPES
    return enough and copies.stack <= types * _STACKED and copies.tables <= _TABLES


class _Alike:
    """Types of one cell with inputs of the same shapes, whatever their parameters."""

    def __init__(self) -> None:
        self._types: dict[Hashable, int] = {}
        self._functions: dict[Hashable, set[int]] = {}  # by code; types keep them
        self._warned: set[Hashable] = set()

    def add(self, node_type: NodeType) -> None:
        """Counts a type."""
        key = self._key(node_type)
        self._types[key] = self._types.get(key, 0) + 1
        function = node_type.cell.function
        self._functions.setdefault(_code(node_type), set()).add(id(function))

    def warn(self, node_type: NodeType) -> None:
        """Warns once if a type that shares with no other is one of many."""
        key = self._key(node_type)
        count, functions = self._types[key], len(self._functions[_code(node_type)])
        if count < MANY or key in self._warned:
            return
        self._warned.add(key)
        cell = node_type.key.cell
        if functions >= MANY:
            text = (
                f"cell {cell!r} was made {functions} times, as by a model that defines"
                " it in its own body; calls of different ones share no batch, and each"
                " is compiled by itself; define the cell once, outside the model, and"
                " pass what differs as an argument"
            )
        else:
            text = (
                "types that differ in their parameters alone share one compiled loop,"
                f" but cell {cell!r} has {count} types, of which many read parameters"
                " of shapes that no other has, so each is compiled by itself; give"
                " these parameters one shape, padded with zeros, or make them inputs"
            )
        warnings.warn(text, ManyTypesWarning, stacklevel=2)

    @staticmethod
    def _key(node_type: NodeType) -> Hashable:
        """All but where the parameters stand."""
        template = node_type.template.with_exact_constants()
        leaves = tuple(
            (kind, None if kind == "parameter" else content)
            for kind, content in template.leaves
        )
        kinds = node_type.operand_kinds, node_type.external_kinds
        return node_type.key.cell, replace(template, leaves=leaves), *kinds


def _code(node_type: NodeType) -> Hashable:
    """What functions have in common that one line of a program makes."""
    function = node_type.cell.function
    code: Hashable = getattr(function, "__code__", function)
    return code


class SharedTypes:
    """The families of a model's recorded types.

    Args:
        recorded: The types; the table may grow.
        shares: Whether families are made.
        anticipates: Whether types that may be met later count, and no cell indexes
            parameters: for waves.
    """

    def __init__(
        self, recorded: TypeTable, *, shares: bool = True, anticipates: bool = False
    ) -> None:
        self._recorded = recorded
        self._shares = shares
        self._anticipates = anticipates
        self._kinship = Kinship(recorded.params_spec)
        self._possible: dict[Relatives, tuple[Family, Copies] | None] = {}
        self._beside: dict[Relatives, int] = {}  # the size of a possible family
        self._warned: set[Relatives] = set()
        self._alike = _Alike()
        self._indexed: dict[int, IndexedCell | None] = {}
        self._own: list[Shared] = []
        self._members: list[int] = []

    def __len__(self) -> int:
        return len(self._own)

    @property
    def any(self) -> bool:
        """Whether some types share."""
        return any(kin != ALONE for _, kin in self._own)

    def indexed(self, type_id: int) -> IndexedCell | None:
        """Returns how a type's nodes index parameters, if they do."""
        if type_id not in self._indexed:
            node_type = self._recorded.types[type_id]
            found = None
            if may_index(node_type, self._recorded):
                found = indexed_cell(node_type, self._recorded)
            self._indexed[type_id] = found
        return self._indexed[type_id]

    def index(self, type_id: int) -> None:
        """Has chunks of a type read one entry each from now on."""
        self._own[type_id] = (type_id, INDEXED)

    def index_types(self) -> dict[int, IndexedCell]:
        """Returns the types whose chunks read one entry each."""
        found = {
            type_id: self._indexed[type_id]
            for type_id, (_, kin) in enumerate(self._own)
            if kin == INDEXED
        }
        return {type_id: each for type_id, each in found.items() if each is not None}

    def of(self, type_id: int) -> Shared:
        """Returns the type that a type runs as, and as which relatives."""
        return self._own[type_id]

    def members(self) -> np.ndarray:
        """Returns the position of each type in its family; 0 of types without one."""
        return np.array(self._members, np.int32)

    def all(self) -> tuple[Shared, ...]:
        """Returns what each type runs as, for a pickle."""
        return tuple(self._own)

    def extend(self) -> None:
        """Takes over types that were recorded since."""
        for node_type in self._recorded.types[len(self._own) :]:
            self._kinship.add(node_type)
            self._alike.add(node_type)
            self._own.append((node_type.id, ALONE))
            self._members.append(0)
            found = self._kinship.relatives(node_type.id)
            for kin, relatives in enumerate(found):
                if relatives.family is not None:
                    self._join(node_type.id, kin, relatives)
                    break

    def decide(self, type_id: int) -> bool:
        """Makes a family of a type and its relatives, if there are enough.

        Args:
            type_id: A type of a minibatch.

        Returns:
            Whether a family was made.
        """
        if not self._shares or self._own[type_id][1] != ALONE:
            return False
        if not self._anticipates and self.indexed(type_id) is not None:
            self.index(type_id)
            return True
        found = self._kinship.relatives(type_id)
        by_number = sorted(range(len(found)), key=lambda k: -self._count(found[k]))
        for kin in by_number:
            if self._pays(found[kin]):
                self._make(found[kin], kin)
                return True
            self._warn(found[kin])
        if all(len(each.keys) == 1 for each in found):
            self._alike.warn(self._recorded.types[type_id])
        return False

    def _warn(self, relatives: Relatives) -> None:
        """Warns once of many types that no loop can share."""
        if len(relatives.keys) >= MANY and relatives not in self._warned:
            self._warned.add(relatives)
            warnings.warn(
                f"types that differ in their parameters alone share one compiled loop,"
                f" but the {len(relatives.keys)} types of cell"
                f" {relatives.first.key.cell!r} that read"
                f" {describe(relatives.prefix)}[...] cannot, so each is compiled"
                " by itself: usually the cell looks up rows in a large table of each,"
                " or reads parts of several, or parameters are too large to stack; look"
                " up the rows in a cell of its own, pass the parts as inputs, or keep"
                " the parameters as one array that the cell indexes",
                ManyTypesWarning,
                stacklevel=2,
            )

    def family(self, type_id: int, kin: int) -> tuple[NodeType, Family | None]:
        """Returns a family that a type belongs to, which is made if it is new.

        Args:
            type_id: The type.
            kin: Which of its relatives.

        Returns:
            The first type of the family, and the family; None if there can be none.
        """
        relatives = self._kinship.relatives(type_id)[kin]
        self._make(relatives, kin)
        return relatives.first, relatives.family

    def _pays(self, relatives: Relatives) -> bool:
        """Whether types have a family, or would save by one."""
        if relatives.family is not None:
            return True
        if self._count(relatives) < LEAST_TYPES:  # before anything is traced
            return False
        found, types = self._find(relatives), len(relatives.keys)
        if self._anticipates:
            types = max(types, LEAST_TYPES)
        return found is not None and pays(types, found[1])

    def _count(self, relatives: Relatives) -> int:
        """The types that would share, those included that may be met later."""
        types = len(relatives.keys)
        if not self._anticipates:
            return types
        if relatives not in self._beside:
            family = self._kinship.find_family(relatives)
            self._beside[relatives] = 0 if family is None else family.size
        return max(types, self._beside[relatives])

    def _find(self, relatives: Relatives) -> tuple[Family, Copies] | None:
        """The family that types could have, and what it would copy."""
        if relatives not in self._possible:
            family = self._kinship.find_family(relatives)
            self._possible[relatives] = (
                None
                if family is None
                else (
                    family,
                    count_copies(relatives.first, self._recorded, family),
                )
            )
        return self._possible[relatives]

    def _make(self, relatives: Relatives, kin: int) -> None:
        """Makes a family, unless there is one or there can be none."""
        found = self._find(relatives)
        if relatives.family is not None or found is None:
            return
        relatives.family = found[0]
        for type_id in relatives.keys:
            if self._own[type_id][1] == ALONE:
                self._join(type_id, kin, relatives)

    def _join(self, type_id: int, kin: int, relatives: Relatives) -> None:
        self._own[type_id] = (relatives.first.id, kin)
        self._members[type_id] = relatives.members[relatives.keys[type_id]]
