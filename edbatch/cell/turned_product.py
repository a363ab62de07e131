"""Cotangents of what products read, with matrices that were turned beforehand.

A product of many lanes with a matrix contracts the matrix's rows; that of their
cotangents contracts its columns. XLA's CPU backend turns such a matrix around before it
multiplies, and would do so for every chunk, in which there may be four lanes. So the
matrix is turned once, before the loops.

On one core of a Cascade Lake Xeon 4 to 256 lanes times 640 by 256 float32 took 0.43 to
0.93 times as long with a matrix that was turned before. Larger ones stay as they are:
with 1,280 by 512 four lanes gained, 32 lost, and turning took more than all gained.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array, lax
from jax.extend.core import JaxprEqn, Var

from edbatch.cell.cell_graph import dtype_of, shape_of

_SMALL = 2**20  # bytes of a matrix up to which it pays


@dataclass(frozen=True)
class TurnedProduct:
    """A product of a lane's array with one that all lanes share, the matrix.

    Attributes:
        matrix: The matrix.
        order: Its axes: first those that the product keeps, then those that it sums.
        kept: Axes of what the product gives that are the matrix's.
        back: What would be the lane's array's axes, among those that `pull` finds.
        precision: As for `lax.dot_general`.
    """

    matrix: Var
    order: tuple[int, ...]
    kept: tuple[int, ...]
    back: tuple[int, ...]
    precision: Any

    @property
    def pays(self) -> bool:
        """Whether the default device multiplies quicker by a turned matrix."""
        size = math.prod(shape_of(self.matrix)) * dtype_of(self.matrix).itemsize
        return size <= _SMALL and jax.default_backend() == "cpu"

    def turn(self, matrix: Array) -> Array:
        """Puts the axes that the product keeps first."""
        return lax.transpose(matrix, self.order)

    def pull(self, turned: Array, bar: Array) -> Array:
        """Finds the cotangent of the lane's array.

        Args:
            turned: What `turn` made of the matrix.
            bar: The cotangent of what the product gives.

        Returns:
            The cotangent, shaped as the lane's array.
        """
        sums = (self.kept, tuple(range(len(self.kept))))
        found = lax.dot_general(bar, turned, (sums, ((), ())), self.precision)
        return lax.transpose(found, self.back)


def turned_product(eqn: JaxprEqn, of_lane: Collection[Var]) -> TurnedProduct | None:
    """Looks at an equation.

    Args:
        eqn: An equation.
        of_lane: The variables that depend on the lane.

    Returns:
        The product; or None if it is none, multiplies two arrays of the lane, element
        by element in some axis, or converts between dtypes.
    """
    if eqn.primitive is not lax.dot_general_p:
        return None
    sums, batches = eqn.params["dimension_numbers"]
    own = [k for k, var in enumerate(eqn.invars) if var in of_lane]
    dtypes = {dtype_of(var) for var in [*eqn.invars, *eqn.outvars]}
    if len(own) != 1 or batches[0] or len(dtypes) > 1:
        return None
    side = own[0]
    lane, matrix = eqn.invars[side], eqn.invars[1 - side]
    if not isinstance(matrix, Var):
        return None
    free, kept = (
        [axis for axis in range(len(shape_of(var))) if axis not in summed]
        for var, summed in ((lane, sums[side]), (matrix, sums[1 - side]))
    )
    first = 0 if side == 1 else len(free)  # of the matrix's axes, in what it gives
    axes = [*free, *sums[side]]  # of the lane's array, in the order of `pull`
    return TurnedProduct(
        matrix,
        order=(*kept, *sums[1 - side]),
        kept=tuple(range(first, first + len(kept))),
        back=tuple(axes.index(axis) for axis in range(len(axes))),
        precision=_reversed(eqn.params["precision"], side),
    )


def _reversed(precision: Any, side: int) -> Any:
    """The precision of a product whose first operand was at a side."""
    if side == 1 and isinstance(precision, tuple):
        return precision[::-1]
    return precision
