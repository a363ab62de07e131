"""Memory that a gradient keeps, in bytes."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from edbatch.cell.summation import sum_dtype
from edbatch.errors import PlanError
from edbatch.executor.program import ProgramShape
from edbatch.plan.plan import Plan


@dataclass(frozen=True)
class GradientMemory:
    """Bytes that a forward and a backward pass keep, for the sizes of a plan's bucket.

    Parameters, their cotangents and XLA's temporary memory are not included.

    Attributes:
        values: Arenas, and external inputs.
        cotangents: Their cotangents.
        tapes: Inputs and outputs of weight-gradient sites, one row per node and padding
            row.
        plan: The integers of the plan.

    Example:
        >>> from edbatch import GradientMemory
        >>> GradientMemory(values=100, cotangents=60, tapes=30, plan=10).total
        200
    """

    values: int
    cotangents: int
    tapes: int
    plan: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.values + self.cotangents + self.tapes + self.plan


def gradient_memory(plan: Plan, *, remat: bool | None = None) -> GradientMemory:
    """Counts the memory that a gradient through a plan keeps.

    Args:
        plan: A plan.
        remat: If True, counts as if planned with ``eb.Compiler(remat="always")``; if
            False, with ``"auto"``; if None, as it was planned.

    Returns:
        The bytes.

    Raises:
        PlanError: ``plan`` is not a plan for one device.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def leaf(params, word):
        ...     return params["embedding"][word]
        >>> params = {"embedding": jnp.eye(3)}
        >>> plan = eb.batch(leaf, params=params).plan([0, 2, 1])
        >>> memory = gradient_memory(plan)  # words are integers: no cotangents
        >>> memory.cotangents < memory.values < memory.total
        True
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            "gradient_memory takes a plan for one device, of batched.plan(instances),"
            f" but received {type(plan).__name__}; in a sharded function, each device"
            " keeps about as much as a plan for its own instances"
        )
    program = plan.shape.program
    remat = program.options.remat if remat is None else remat
    arenas = [
        (rows * program.types.avals[kind].num_bytes, program.types.avals[kind].dtype)
        for kind, rows in program.arena_rows
    ]
    arenas += [(_num_bytes(pool), pool.dtype) for pool in plan.pools.values()]
    floats = [
        size * sum_dtype(dtype).itemsize // dtype.itemsize
        for size, dtype in arenas
        if jnp.issubdtype(dtype, jnp.inexact)
    ]
    own = [plan.stream, plan.trips, *plan.rows, *plan.lengths]
    return GradientMemory(
        values=sum(size for size, _ in arenas),
        cotangents=sum(floats),
        tapes=_tape_bytes(program, remat),
        plan=sum(map(_num_bytes, own)),
    )


def _tape_bytes(program: ProgramShape, remat: bool) -> int:
    used = {loop.type_id for loop in program.loops}
    total = 0
    for type_id, rows in program.type_rows:
        if type_id not in used:
            continue
        cell = program.with_options(remat=remat).taped_cell(type_id)
        tapes = jax.eval_shape(
            lambda c=cell, r=rows: (c.new_inputs(r), c.new_outputs(r))
        )
        total += sum(map(_num_bytes, jax.tree.leaves(tapes)))
    return total


def _num_bytes(array: jax.Array | jax.ShapeDtypeStruct) -> int:
    return int(array.size) * array.dtype.itemsize
