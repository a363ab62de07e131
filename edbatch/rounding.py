"""The coarsest rounding on the data path to each result, for tolerances.

`edbatch.verify` compares two ways of computing the same numbers. They may differ by
rounding errors: not only in the result's own dtype, but in the dtype of every floating
value on the path to it, such as the values of a cell that computes in bfloat16. The
path is read from the jaxpr of the model, or of its gradient, which includes the
backward pass. Parts of the model off this path do not widen a result's tolerance.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from edbatch.cell.jaxpr import (
    Body,
    JaxprEqn,
    Literal,
    While,
    dtype_of,
    inner_bodies,
    mantissa_bits,
    name_of,
    read_scan,
    read_while,
    trace,
)
from edbatch.cell.primitives import COND, EXACT

finfo: Any = jnp.finfo


class Rounding(NamedTuple):
    """A relative rounding error; of two, the larger is the coarser.

    Attributes:
        eps: The relative rounding error; 0 if nothing was rounded.
        dtype: The dtype, for messages.
    """

    eps: float
    dtype: str


NONE = Rounding(0.0, "")


def rounding_of(dtype: Any) -> Rounding:
    """Returns the rounding of one dtype; none for integers.

    Args:
        dtype: A dtype.

    Returns:
        Its rounding.

    Example:
        >>> rounding_of(jnp.bfloat16)
        Rounding(eps=0.0078125, dtype='bfloat16')
    """
    if not jnp.issubdtype(dtype, jnp.inexact):
        return NONE
    return Rounding(float(finfo(dtype).eps), str(jnp.dtype(dtype)))


def coarsest_roundings(function: Callable[..., Any], *args: Any) -> list[Rounding]:
    """Finds the coarsest rounding on the data path to each output of a function.

    The function's arguments and the values it closes over count as exact.

    Args:
        function: A JAX function.
        *args: Its arguments, pytrees of arrays.

    Returns:
        One per leaf of the output, in order.

    Example:
        >>> def function(x):
        ...     return jnp.sin(x.astype(jnp.bfloat16)).astype(x.dtype), jnp.sin(x)
        >>> [each.dtype for each in coarsest_roundings(function, jnp.float32(1.0))]
        ['bfloat16', 'float32']
    """
    body, _ = trace(lambda *own: jax.tree.leaves(function(*own)), *args)
    return _run(body, [NONE] * len(body.inputs))


def _run(body: Body, inputs: Sequence[Rounding]) -> list[Rounding]:
    """Propagates roundings from a function's inputs to its outputs."""
    found: dict[Any, Rounding] = dict(zip(body.inputs, inputs, strict=True))

    def read(atom: Any) -> Rounding:
        return NONE if isinstance(atom, Literal) else found.get(atom, NONE)

    for eqn in body.equations:
        outputs = _equation(eqn, [read(each) for each in eqn.invars])
        found.update(zip(eqn.outvars, outputs, strict=True))
    return [read(each) for each in body.outputs]


def _equation(eqn: JaxprEqn, inputs: list[Rounding]) -> list[Rounding]:
    """The roundings of an equation's results."""
    if loop := read_while(eqn):
        return _while(loop, inputs)
    if scan := read_scan(eqn):
        consts, others = inputs[: scan.num_consts], inputs[scan.num_consts :]
        return _repeat(scan.body, consts, others, scan.num_carried)
    bodies = inner_bodies(eqn)
    if name_of(eqn) == COND:
        branches = [_run(each, inputs[1:]) for each in bodies]
        return [max(inputs[0], *each) for each in zip(*branches, strict=True)]
    if bodies and all(
        (len(each.inputs), len(each.outputs)) == (len(inputs), len(eqn.outvars))
        for each in bodies
    ):  # a call, such as jit, remat, or one with a custom rule
        outputs = [_run(each, inputs) for each in bodies]
        return [max(each) for each in zip(*outputs, strict=True)]
    if bodies:  # how inputs map to bodies is unknown
        inner = [_run_all(each) for each in bodies]
        return [max(NONE, *inputs, *inner)] * len(eqn.outvars)
    coarsest = max(inputs, default=NONE)
    if name_of(eqn) in EXACT:
        return [coarsest] * len(eqn.outvars)
    return [max(coarsest, _own(eqn, var)) for var in eqn.outvars]


def _own(eqn: JaxprEqn, var: Any) -> Rounding:
    """The rounding that an equation itself adds."""
    own = rounding_of(dtype_of(var))
    bits = mantissa_bits(eqn)
    return own if bits is None else max(own, Rounding(2.0**-bits, f"{bits} bits"))


def _while(loop: While, inputs: list[Rounding]) -> list[Rounding]:
    """The roundings of a loop's results, each at least as coarse as its condition."""
    first = loop.condition_consts
    second = first + loop.body_consts
    carries = len(inputs) - second
    outputs = _repeat(loop.body, inputs[first:second], inputs[second:], carries)
    [iterations] = _run(loop.condition, [*inputs[:first], *outputs])
    return [max(iterations, each) for each in outputs]


def _repeat(
    body: Body, consts: list[Rounding], inputs: list[Rounding], carries: int
) -> list[Rounding]:
    """Runs the body of a loop until no rounding gets coarser."""
    while True:
        outputs = _run(body, [*consts, *inputs])
        carried = list(map(max, inputs[:carries], outputs[:carries]))
        if carried == inputs[:carries]:
            return [*carried, *outputs[carries:]]
        inputs = [*carried, *inputs[carries:]]


def _run_all(body: Body) -> Rounding:
    """The coarsest rounding anywhere in a function."""
    own = [_own(eqn, var) for eqn in body.equations for var in eqn.outvars]
    inner = [_run_all(each) for eqn in body.equations for each in inner_bodies(eqn)]
    return max(NONE, *own, *inner)
