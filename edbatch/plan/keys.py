"""Derives the keys of a minibatch's nodes from one key of the caller."""

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
    """Returns whether a program has cells that draw random numbers.

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
        The program; without a key, the variant whose cells run with the default of
        `rng`.

    Raises:
        PlanError: There is no key but a cell needs one.
        CellError: A cell returns other shapes without a key.
    """
    if rng is not None or not shape.options.with_keys or not takes_keys(shape):
        return shape
    _check_defaults(shape, [True] * len(shape.loops))
    return shape.with_options(with_keys=False)


def give_keys(
    shape: ProgramShape, pools: Arenas, rng: Any
) -> tuple[ProgramShape, Arenas]:
    """Derives the keys of nodes; they replace the numbers that they are derived from.

    All keys are derived in one operation, before the program runs, so that the backward
    pass of a gradient reads the same keys as the forward pass.

    Args:
        shape: The program.
        pools: External inputs by array kind; for keys, the numbers that they are
            derived from, ``[rows, 2]``.
        rng: The caller's key, or None.

    Returns:
        The program and its external inputs; without a key, the variant of the program
        whose cells run with the default of `rng`.

    Raises:
        PlanError: There is no key but a cell needs one.
        CellError: `rng` is not a key; or a cell returns other shapes without a key.
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
    """Prepares a plan to run with a key or without one.

    A program has loops for cells that only other minibatches call. So without a key,
    only the cells that the plan's own nodes call must be able to run without one. In a
    traced plan these cells are unknown, so all cells of its program must be able to.

    Args:
        plan: The plan, or the plans of all devices, stacked.
        rng: The caller's key, typed or raw, or None.

    Returns:
        The plan as it runs, and the typed key; None if there is none, or no cell of the
        plan takes one.

    Raises:
        PlanError: There is no key but a cell needs one.
        CellError: `rng` is not a key; or a cell returns other shapes without a key.
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
    """Returns whether a program has cells that cannot run without a key."""
    return any(shape.types.types[loop.type_id].needs_rng for loop in shape.loops)


def check_defaults(shape: ProgramShape) -> None:
    """Checks that all cells whose key has a default run without their key.

    Args:
        shape: The program; cells that need a key are not checked.

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
