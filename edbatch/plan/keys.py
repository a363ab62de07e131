"""The keys of a minibatch's nodes, from one key of the caller."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.executor.arenas import Arenas
from edbatch.executor.packed_parameters import is_traced
from edbatch.executor.program import ProgramShape
from edbatch.graph.node_keys import (
    GENERATOR,
    is_key,
    missing_key,
    node_key,
    typed_key,
)
from edbatch.graph.type_checks import check_default_of_rng
from edbatch.plan.plan import Plan


def takes_keys(shape: ProgramShape) -> bool:
    """Tells whether a program has cells that draw random numbers.

    Args:
        shape: The program.

    Returns:
        Whether a type that it can run takes a key per node.
    """
    return any(shape.types.types[loop.type_id].takes_rng for loop in shape.loops)


def plan_key(plan: Plan, rng: Any) -> Any:
    """Checks the key that a plan is run with.

    Args:
        plan: The plan.
        rng: The caller's key, typed or raw, or None.

    Returns:
        The typed key; None if there is none, or no cell of the plan takes one.

    Raises:
        CellError: `rng` is not a key.
    """
    if rng is None or not takes_keys(plan.shape.program):
        return None
    return typed_key(rng)


def program_with(shape: ProgramShape, rng: Any) -> ProgramShape:
    """Returns the program that runs with a key, or without one.

    Args:
        shape: The program.
        rng: The caller's key, or None.

    Returns:
        The program; without a key, that of cells that run with their default.

    Raises:
        PlanError: There is no key but a cell needs one.
        CellError: A cell returns other shapes without one.
    """
    if rng is not None or not shape.options.with_keys or not takes_keys(shape):
        return shape
    _check_defaults(shape, [True] * len(shape.loops))
    return shape.with_options(with_keys=False)


def give_keys(
    shape: ProgramShape, pools: Arenas, rng: Any
) -> tuple[ProgramShape, Arenas]:
    """Puts keys in place of the numbers that they are derived from.

    All keys are derived in one operation, before the program runs, so that the
    backward pass of a gradient reads those that the forward pass read.

    Args:
        shape: The program.
        pools: External inputs by array kind; of keys, their numbers ``[rows, 2]``.
        rng: The caller's key, or None.

    Returns:
        The program and its external inputs; without a key, the program of cells that
        run with their default.

    Raises:
        PlanError: There is no key but a cell needs one.
        CellError: `rng` is not a key; or a cell returns other shapes without one.
    """
    if not takes_keys(shape):
        return shape, pools
    kinds = [kind for kind in pools if is_key(shape.types.avals[kind].dtype)]
    if rng is None:
        shape, rng = program_with(shape, rng), jax.random.key(0, impl=GENERATOR)
        keys = {kind: jnp.broadcast_to(rng, len(pools[kind])) for kind in kinds}
    else:
        derive = jax.vmap(node_key, in_axes=(None, 0, 0))
        rng = typed_key(rng)
        keys = {kind: derive(rng, *pools[kind].T) for kind in kinds}
    return shape, pools | keys


def keyed(plan: Plan, rng: Any) -> tuple[Plan, Any]:
    """Checks whether a plan runs with a key or without one.

    A program has loops of cells that other minibatches call, so without a key it is the
    cells that the plan's own nodes call that must do without. Of a plan that is traced
    these are not known, and each cell of its program must.

    Args:
        plan: The plan, or those of all devices, stacked.
        rng: The caller's key, typed or raw, or None.

    Returns:
        The plan as it runs, and the typed key; None if there is none, or no cell of the
        plan takes one.

    Raises:
        PlanError: There is no key but a cell needs one.
        CellError: `rng` is not a key; or a cell returns other shapes without one.
    """
    program = plan.shape.program
    key = plan_key(plan, rng)
    if rng is not None or not _needs_keys(program) or is_traced(plan.trips):
        return plan, key
    trips = np.asarray(plan.trips)
    runs = [bool(each.any()) for each in trips.reshape(-1, trips.shape[-1]).T]
    _check_defaults(program, runs)
    return plan.without_keys(), key


def _needs_keys(shape: ProgramShape) -> bool:
    """Tells whether a program has cells that cannot run without a key."""
    return any(shape.types.types[loop.type_id].needs_rng for loop in shape.loops)


def check_defaults(shape: ProgramShape) -> None:
    """Checks that cells of a program run without a key, unless it is never run then.

    Args:
        shape: The program; cells that need a key are not looked at.

    Raises:
        CellError: A cell returns other shapes without its key.
    """
    for loop in shape.loops:
        node_type = shape.types.types[loop.type_id]
        if node_type.takes_rng and not node_type.needs_rng:
            check_default_of_rng(shape.types, node_type)


def _check_defaults(shape: ProgramShape, runs: Sequence[bool]) -> None:
    for loop, is_run in zip(shape.loops, runs, strict=True):
        node_type = shape.types.types[loop.type_id]
        if not node_type.takes_rng or not is_run:
            continue
        if node_type.needs_rng:
            raise missing_key(node_type.key.cell)
        check_default_of_rng(shape.types, node_type)
