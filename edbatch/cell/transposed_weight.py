"""Backward of ``x @ W`` using a weight transposed once, outside the loop.

A product contracts the rows of its weight, its backward product the columns. For the
latter XLA's CPU backend transposes the weight before it multiplies, and would do so in
every chunk, some of which have only four batch rows.

On one core of a Cascade Lake Xeon 4 to 256 batch rows times 640 by 256 float32 took
0.43 to 0.93 times as long with a pre-transposed weight. Larger weights are not
transposed beforehand: with 1,280 by 512, four rows gained, 32 rows lost, and the
transposition took more time than was gained in all.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from jax import Array, lax

from edbatch.cell.jaxpr import JaxprEqn, Var, dtype_of, read_dot, shape_of, size_of
from edbatch.target import Target


@dataclass(frozen=True)
class TransposedWeight:
    """The backward of a product of a batch row's array with a weight.

    Attributes:
        weight: The weight.
        order: The weight's axes: first those that the product keeps, then those it
            contracts.
        kept: Axes of the product's result that come from the weight.
        permutation: From `pull`'s axis order back to that of the batch row's array.
        precision: As for `lax.dot_general`.
    """

    weight: Var
    order: tuple[int, ...]
    kept: tuple[int, ...]
    permutation: tuple[int, ...]
    precision: Any

    def pays(self, target: Target) -> bool:
        """Whether a device multiplies faster by a pre-transposed weight.

        Args:
            target: The kind of device.
        """
        size = size_of(self.weight) * dtype_of(self.weight).itemsize
        return size <= target.pretransposed_bytes

    def transpose(self, weight: Array) -> Array:
        """Returns the weight with the axes that the product keeps first."""
        return lax.transpose(weight, self.order)

    def pull(self, transposed: Array, bar: Array) -> Array:
        """Finds the cotangent of the batch row's array.

        Args:
            transposed: The result of `transpose`.
            bar: The cotangent of the product's result.

        Returns:
            The cotangent, in the shape of the batch row's array.
        """
        dims = (self.kept, tuple(range(len(self.kept))))
        found = lax.dot_general(bar, transposed, (dims, ((), ())), self.precision)
        return lax.transpose(found, self.permutation)


def transposed_weight(
    eqn: JaxprEqn, of_row: Collection[Var]
) -> TransposedWeight | None:
    """Matches a product of a batch row's array with a weight.

    Args:
        eqn: An equation.
        of_row: The variables that depend on the batch row.

    Returns:
        Its backward; None if the equation is no product, multiplies two arrays of the
        batch row, has batch dimensions, or converts between dtypes.
    """
    dot = read_dot(eqn)
    if dot is None or any(dot.batch_dims):
        return None
    own = [k for k, var in enumerate(eqn.invars) if var in of_row]
    if len(own) != 1 or len({dtype_of(v) for v in [*eqn.invars, *eqn.outvars]}) > 1:
        return None
    side = own[0]
    row, weight = eqn.invars[side], eqn.invars[1 - side]
    if not isinstance(weight, Var):
        return None
    free, kept = (
        [axis for axis in range(len(shape_of(var))) if axis not in contracted]
        for var, contracted in ((row, dot.dims[side]), (weight, dot.dims[1 - side]))
    )
    first = 0 if side == 1 else len(free)  # of the weight's axes, in the result
    axes = [*free, *dot.dims[side]]  # of the row's array, in the order of `pull`
    return TransposedWeight(
        weight,
        order=(*kept, *dot.dims[1 - side]),
        kept=tuple(range(first, first + len(kept))),
        permutation=tuple(axes.index(axis) for axis in range(len(axes))),
        precision=_reversed(dot.precision, side),
    )


def _reversed(precision: Any, side: int) -> Any:
    """The precision of a product whose first operand was on this side."""
    if side == 1 and isinstance(precision, tuple):
        return precision[::-1]
    return precision
