"""Cache of packed parameters, keyed by the identity of the parameters.

Packing concatenates the matrices of a cell's gates in every call. For inference, where
the same parameter arrays are passed again and again, it is done once.

Gain (docs/results-memory.md, "Packing"): the forward pass of a tagger at hidden size
256, whose matrices take 10 MB, took 1.08 times as long when each call packed them.
"""

import weakref
from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from edbatch.cell.members import MemberCell
from edbatch.cell.program import CellProgram, Packed
from edbatch.executor.program import ProgramShape
from edbatch.graph.constants import number_marks
from edbatch.graph.parameter_structure import check_params

_Cells = tuple[CellProgram | MemberCell, ...]
_Pack = Callable[[Any], list[Packed]]


class PackedParameters:
    """The packed parameters of the latest parameters.

    JAX arrays are immutable, so comparing identities is enough. Parameters are held by
    weak references: as soon as one of them is freed, the packed parameters are, too.

    Args:
        compiled: Compiles a function, like `jax.jit`.
    """

    def __init__(self, compiled: Callable[[_Pack], _Pack] = jax.jit) -> None:
        self._latest: _Latest | None = None
        self._compiled = compiled
        self._packs: dict[_Cells, _Pack] = {}

    def of(self, params: Any, program: ProgramShape) -> dict[int, Packed] | None:
        """Returns the packed parameters of a program, computed once per parameters.

        Args:
            params: The model's parameters.
            program: The program.

        Returns:
            As from `ProgramShape.pack`; None if the result cannot be cached, because
            parameters are traced, deleted or not JAX arrays.

        Raises:
            PlanError: The parameters have other shapes than the recorded ones.
        """
        leaves, treedef = jax.tree.flatten(params)
        latest = self._latest  # another thread may replace it in the meantime
        if latest is None or not latest.is_of(leaves, treedef):
            if is_traced(leaves) or not all(isinstance(x, jax.Array) for x in leaves):
                return None
            latest = self._latest = _Latest(leaves, treedef)
        if any(leaf.is_deleted() for leaf in leaves):
            return None
        cells = program.packers()
        missing = tuple(cell for cell in cells.values() if cell not in latest.packed)
        if missing:
            check_params(params, program.types.params_spec)
            packed = self._pack_of(missing)(params)
            if is_traced(packed):  # constant parameters in a function being traced
                return None
            latest.packed |= dict(zip(missing, packed, strict=True))
        return {type_id: latest.packed[cell] for type_id, cell in cells.items()}

    def _pack_of(self, cells: _Cells) -> _Pack:
        """Returns the compiled function that packs the parameters of some cells."""

        def packed_parameters(params: Any) -> list[Packed]:
            return [cell.pack(params) for cell in cells]

        known = self._packs.get(cells)
        return known or self._packs.setdefault(cells, self._compiled(packed_parameters))


class _Latest:
    """Parameters, by weak references, and their packed parameters by cell."""

    def __init__(self, leaves: list[Array], treedef: Any) -> None:
        packed: dict[CellProgram | MemberCell, Packed] = {}
        self.packed = packed
        self._treedef, self._marks = treedef, number_marks(treedef)
        # Nothing is cleared while `packed` is read: its reader holds the parameters.
        self._leaves = [weakref.ref(leaf, lambda _: packed.clear()) for leaf in leaves]

    def is_of(self, leaves: list[Array], treedef: Any) -> bool:
        """Returns whether these are the same parameters."""
        if treedef != self._treedef or any(
            known() is not leaf
            for known, leaf in zip(self._leaves, leaves, strict=True)
        ):
            return False
        # If the known treedef has no numbers, an equal one has none either.
        return not self._marks or self._marks == number_marks(treedef)


def is_traced(tree: Any) -> bool:
    """Returns whether a leaf of a pytree is a tracer."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
