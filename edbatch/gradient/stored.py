"""Forward and backward pass as functions of flat arrays, for stored programs.

A backward pass reads the arrays that the forward pass wrote, in the order in which it
wrote them. Its key therefore includes the key of the forward pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.executor.arenas import Arenas
from edbatch.executor.program import ProgramShape
from edbatch.gradient.cotangents import is_float
from edbatch.stored_programs.stored_program import call_stored
from edbatch.stream.stream import Stream


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class StoredRun:
    """The arrays of a `TapedRun`, as returned by a stored forward pass.

    Attributes:
        arrays: Its leaves.
        key: The key of the forward pass.
    """

    arrays: tuple[Array, ...]
    key: str

    def tree_flatten(self) -> tuple[tuple[Array, ...], str]:
        """Splits it into arrays and the key."""
        return self.arrays, self.key

    @classmethod
    def tree_unflatten(cls, key: str, arrays: Any) -> "StoredRun":
        """Builds it from its parts."""
        return cls(tuple(arrays), key)


def run_stored(
    function: Callable[..., tuple[Any, ...]],
    program: ProgramShape,
    wanted: Any,
    *inputs: Any,
    with_tapes: bool = False,
) -> tuple[Any, ...]:
    """Runs a forward pass, by its stored program if it can be stored.

    Args:
        function: Takes the program, `wanted` and the inputs; returns results, the row
            indices looked up in tables and, if it writes tapes, a `TapedRun`.
        program: The program.
        wanted: The wanted results and tables.
        *inputs: Parameters, external inputs, the stream and the rows of results.
        with_tapes: Whether the function writes tapes, for a backward pass.

    Returns:
        The function's result; a stored program returns a `StoredRun` in place of the
        `TapedRun`.
    """
    inputs = _as_arrays(inputs)
    arrays, treedef = jax.tree.flatten(inputs)

    def flat(*own: Any) -> list[Any]:
        found = function(program, wanted, *jax.tree.unflatten(treedef, own))
        if len(found) > 2:
            _structure(program, wanted, lambda: found[2])
        return jax.tree.leaves(found)

    static = tuple(wanted), _layout(*inputs)
    name = name_of(function)
    found = call_stored(name, program, static, flat, arrays, differentiates=with_tapes)
    if found is None:
        return function(program, wanted, *inputs)
    leaves, key = found
    ends = len(wanted.kinds), len(wanted.kinds) + len(wanted.tables)
    results = tuple(leaves[: ends[0]]), tuple(leaves[ends[0] : ends[1]])
    run = tuple(leaves[ends[1] :])
    return (*results, StoredRun(run, key)) if run else results


def differentiate_stored(
    function: Callable[..., Any],
    forward: Callable[..., tuple[Any, ...]],
    program: ProgramShape,
    wanted: Any,
    residuals: Any,
    cotangents: list[Array | None],
) -> Any:
    """Runs a backward pass, by its stored program if it can be stored.

    Args:
        function: Takes the program, `wanted`, the residuals and the cotangents of
            results; returns the cotangents of parameters, external inputs and probes.
        forward: The function of the forward pass.
        program: The program.
        wanted: The wanted results and tables.
        residuals: Residuals of the forward pass; a `StoredRun` in them is converted to
            the `TapedRun` that the function takes.
        cotangents: Cotangents of the results; None for results that nothing reads.

    Returns:
        The function's result.
    """
    residuals = _as_arrays(residuals)
    params, pools, stream, rows, run = (
        *(residuals.params, residuals.pools, residuals.stream, residuals.rows),
        residuals.run,
    )
    if not isinstance(run, StoredRun):
        return function(program, wanted, residuals, cotangents)

    # The functions below live as long as the program, so they hold no array of a call.
    names = "params", "pools", "stream", "rows"
    shapes = jax.tree.map(_shape, (params, pools, stream, rows))
    others = residuals._replace(run=None, probes=(), **dict.fromkeys(names))

    def structure() -> Any:
        return jax.eval_shape(lambda *own: forward(program, wanted, *own), *shapes)[2]

    def call(inputs: Any) -> Any:
        *own, leaves, bars = inputs
        taped = jax.tree.unflatten(_structure(program, wanted, structure), leaves)
        given = dict(zip(names, own, strict=True))
        return function(program, wanted, others._replace(run=taped, **given), bars)

    inputs = params, pools, stream, rows, run.arrays, cotangents
    arrays, treedef = jax.tree.flatten(inputs)
    static = (
        (tuple(wanted), _layout(params, pools, stream, rows), run.key),
        [bar is None for bar in cotangents],
        sorted(kind for kind, mark in residuals.active.items() if mark is not None),
    )

    def flat(*own: Any) -> list[Any]:
        return jax.tree.leaves(call(jax.tree.unflatten(treedef, own)))

    name = name_of(function)
    found = call_stored(name, program, static, flat, arrays, differentiates=True)
    if found is None:
        return call(inputs)
    leaves = iter(found[0])
    bars = jax.tree.map(
        lambda own: next(leaves) if is_float(own) else None, (params, pools)
    )
    return (*bars, tuple(leaves))


def _shape(array: Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        array.shape, array.dtype, weak_type=jax.typeof(array).weak_type
    )


def _as_arrays(tree: Any) -> Any:
    """Converts NumPy arrays, which occur if `jax.jit` is disabled, to JAX arrays."""
    return jax.tree.map(
        lambda each: each if isinstance(each, Array) else jnp.asarray(each), tree
    )


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function's lowered program."""
    return function.__name__.strip("_")


def _layout(params: Any, pools: Arenas, stream: Stream, rows: Any) -> Any:
    """Kinds of pools and numbers of parameters and results, for the key."""
    return sorted(pools), len(jax.tree.leaves(params)), len(rows)


def _structure(program: ProgramShape, wanted: Any, run: Callable[[], Any]) -> Any:
    """The structure of a `TapedRun`, determined by the program and `wanted`."""
    key = (_structure, program, wanted)
    return program.types.derived(key, lambda: jax.tree.structure(run()))
