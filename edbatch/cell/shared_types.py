"""Families: types of a model that share loops.

A family consists of types that differ only in the path of their parameters. It is made
if sharing saves more than it copies (`pays`):

- It saves the compilation of all its types except one, so there must be at least
  `LEAST_TYPES`.
- It stacks the parameters of all members, recorded or not, in every traced call. If
  stacks are kept between calls, they double the memory of these parameters. Each type
  that shares justifies `_STACKED` bytes: copying that much a hundred times takes as
  long as compiling a type. If a cell indexes parameters that are already stacked,
  nothing is copied.
- A chunk copies its member's parameters. A product would read all of them anyway, but a
  lookup only reads a few rows of its table. So tables have at most `_TABLES` bytes in
  total, which are copied in the time that a chunk takes in any case.

Fitting types that are recorded later join a family, or make one as soon as there are
enough. Waves meet the layers of a stack one after the other, and would compile again
for each. So in waves a family is made with the first type whose parameters are next to
enough similar ones (`anticipates`), if stacking these copies no more bytes than four
types justify.

Gain (docs/results.md, "Shared loops"): a stack of 48 layers has 5 loops instead of 98,
and its forward pass is compiled in 0.5 instead of 2.0 s. 10,000 inputs to 10,000
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

MANY = 8  # this many types that cannot share cause a warning

# In place of the index of a type's relatives:
ALONE = -1  # it shares with no other type
INDEXED = -2  # each of its nodes reads one entry of parameters (`indexed_cell`)
# The first type of a type's family (or the type itself), and the index of its relatives
# or `ALONE` or `INDEXED`.
Shared = tuple[int, int]


def pays(types: int, copies: Copies) -> bool:
    """Returns whether a family saves more than it copies.

    Args:
        types: Number of types that would share; others may be recorded later.
        copies: The bytes that it copies.

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


class _SimilarTypes:
    """Counts types of one cell and the same input shapes, whatever their parameters."""

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
                f"cell {cell!r} was made {functions} times, probably because the model"
                " defines it in its own body; calls of different copies are never"
                " batched together, and each copy is compiled separately; define the"
                " cell once, outside the model, and pass the values that differ as"
                " arguments"
            )
        else:
            text = (
                "types that differ only in their parameters share one compiled loop,"
                f" but cell {cell!r} has {count} types, many of which read parameters"
                " of a shape that no other type reads, so each is compiled separately;"
                " give these parameters one shape, padded with zeros, or make them"
                " inputs"
            )
        warnings.warn(text, ManyTypesWarning, stacklevel=2)

    @staticmethod
    def _key(node_type: NodeType) -> Hashable:
        """Everything except the paths of the parameters."""
        template = node_type.template.with_exact_constants()
        leaves = tuple(
            (kind, None if kind == "parameter" else content)
            for kind, content in template.leaves
        )
        kinds = node_type.operand_kinds, node_type.external_kinds
        return node_type.key.cell, replace(template, leaves=leaves), *kinds


def _code(node_type: NodeType) -> Hashable:
    """The code that all functions made by one definition share."""
    function = node_type.cell.function
    code: Hashable = getattr(function, "__code__", function)
    return code


class SharedTypes:
    """The families of a model's recorded types.

    Args:
        recorded: The types; the table may grow.
        shares: Whether families are made.
        anticipates: Whether types that may be recorded later count, and cells are
            not run as indexed cells; for waves.
    """

    def __init__(
        self, recorded: TypeTable, *, shares: bool = True, anticipates: bool = False
    ) -> None:
        self._recorded = recorded
        self._shares = shares
        self._anticipates = anticipates
        self._kinship = Kinship(recorded.params_spec)
        self._possible: dict[Relatives, tuple[Family, Copies] | None] = {}
        self._possible_size: dict[Relatives, int] = {}  # the size of a possible family
        self._warned: set[Relatives] = set()
        self._alike = _SimilarTypes()
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
        """Returns how a type's nodes index parameters; None if they do not."""
        if type_id not in self._indexed:
            node_type = self._recorded.types[type_id]
            found = None
            if may_index(node_type, self._recorded):
                found = indexed_cell(node_type, self._recorded)
            self._indexed[type_id] = found
        return self._indexed[type_id]

    def index(self, type_id: int) -> None:
        """Makes chunks of a type read one entry each from now on."""
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
        """Returns the family that a type runs as; see `Shared`."""
        return self._own[type_id]

    def members(self) -> np.ndarray:
        """Returns the position of each type in its family; 0 for types without one."""
        return np.array(self._members, np.int32)

    def all(self) -> tuple[Shared, ...]:
        """Returns the result of `of` for each type, for a pickle."""
        return tuple(self._own)

    def extend(self) -> None:
        """Adds the types recorded since the last call."""
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
        """Makes a type share if that pays: in a family, or by indexing parameters.

        Args:
            type_id: A type of a minibatch.

        Returns:
            Whether a family was made, or the type indexes parameters from now on.
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
        """Warns once of many types that cannot share a loop."""
        if len(relatives.keys) >= MANY and relatives not in self._warned:
            self._warned.add(relatives)
            warnings.warn(
                "types that differ only in their parameters share one compiled loop,"
                f" but the {len(relatives.keys)} types of cell"
                f" {relatives.first.key.cell!r} that read"
                f" {describe(relatives.prefix)}[...] cannot, so each is compiled"
                " separately: usually the cell looks up rows in a large table per type,"
                " or reads parameters of several, or they are too large to stack; look"
                " up the rows in a separate cell, pass the parts as inputs, or keep the"
                " parameters as one array that the cell indexes",
                ManyTypesWarning,
                stacklevel=2,
            )

    def family(self, type_id: int, kin: int) -> tuple[NodeType, Family | None]:
        """Returns a family that a type belongs to; makes it if it is new.

        Args:
            type_id: The type.
            kin: Index of the relatives among those of the type.

        Returns:
            The first type of the family, and the family; None in place of the family
            if it is not possible.
        """
        relatives = self._kinship.relatives(type_id)[kin]
        self._make(relatives, kin)
        return relatives.first, relatives.family

    def _pays(self, relatives: Relatives) -> bool:
        """Whether types have a family, or would gain from one."""
        if relatives.family is not None:
            return True
        if self._count(relatives) < LEAST_TYPES:  # before anything is traced
            return False
        found, types = self._find(relatives), len(relatives.keys)
        if self._anticipates:
            types = max(types, LEAST_TYPES)
        return found is not None and pays(types, found[1])

    def _count(self, relatives: Relatives) -> int:
        """The number of types that would share; later ones count if anticipated."""
        types = len(relatives.keys)
        if not self._anticipates:
            return types
        if relatives not in self._possible_size:
            family = self._kinship.find_family(relatives)
            self._possible_size[relatives] = 0 if family is None else family.size
        return max(types, self._possible_size[relatives])

    def _find(self, relatives: Relatives) -> tuple[Family, Copies] | None:
        """The possible family of some types, and the bytes that it would copy."""
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
        """Makes a family, unless it exists or is not possible."""
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
