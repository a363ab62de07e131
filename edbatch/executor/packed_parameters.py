"""Cache of packed weights, keyed by parameter identity.

Packing copies the matrices of a cell's gates side by side, in every call. For
inference, where the same arrays come back, it is done once.
"""

import weakref
from typing import Any

import jax
from jax import Array

from edbatch.cell.members import MemberCell
from edbatch.cell.program import CellProgram, Packed
from edbatch.executor.program import ProgramShape
from edbatch.graph.parameters import check_params


class PackedParameters:
    """The packed weights of the latest parameters.

    Arrays of JAX are immutable, so identity is enough. Parameters are held by weak
    references: once one of them is dropped, so are the packed weights.
    """

    def __init__(self) -> None:
        self._latest: _Latest | None = None
        self._pack = jax.jit(_pack, static_argnums=0)

    def of(self, params: Any, program: ProgramShape) -> dict[int, Packed] | None:
        """Returns the packed weights of a program, computed once per parameters.

        Args:
            params: The model's parameters.
            program: The program.

        Returns:
            As `ProgramShape.pack`; None if parameters are traced, deleted, or not
            arrays of JAX, and so cannot be cached.

        Raises:
            PlanError: The parameters have other shapes than those that were recorded.
        """
        leaves, treedef = jax.tree.flatten(params)
        latest = self._latest  # another thread may put its own in place meanwhile
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
            packed = self._pack(missing, params)
            if is_traced(packed):  # constant parameters in a function that is traced
                return None
            latest.packed |= dict(zip(missing, packed, strict=True))
        return {type_id: latest.packed[cell] for type_id, cell in cells.items()}


class _Latest:
    """Parameters, by weak references, and their packed weights by cell."""

    def __init__(self, leaves: list[Array], treedef: Any) -> None:
        packed: dict[CellProgram | MemberCell, Packed] = {}
        self.packed = packed
        self._treedef = treedef
        # Whoever reads `packed` holds the parameters, so it is not emptied meanwhile.
        self._leaves = [weakref.ref(leaf, lambda _: packed.clear()) for leaf in leaves]

    def is_of(self, leaves: list[Array], treedef: Any) -> bool:
        """Tells whether these are the parameters."""
        return treedef == self._treedef and all(
            known() is leaf for known, leaf in zip(self._leaves, leaves, strict=True)
        )


def is_traced(tree: Any) -> bool:
    """Tells whether a leaf of a pytree is a tracer."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def _pack(cells: tuple[CellProgram | MemberCell, ...], params: Any) -> list[Packed]:
    return [cell.pack(params) for cell in cells]
