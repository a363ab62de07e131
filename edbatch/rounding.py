"""How coarsely the numbers on the way to a result are rounded.

`edbatch.verify` compares two ways of computing the same numbers. They may differ by
rounding errors: not only those of a result's own dtype, but of every floating value
that was rounded on the way to it, such as that of a cell that computes in bfloat16. The
way is read from the jaxpr of the model, or of its gradient, which holds the backward
pass, too: no other part of the model makes a result's tolerance wider.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

# They move values or choose among them, and round nothing.
_EXACT = frozenset(
    (
        *("abs", "broadcast_in_dim", "concatenate", "copy", "dynamic_slice", "gather"),
        *("dynamic_update_slice", "max", "min", "neg", "optimization_barrier", "pad"),
        *("reshape", "rev", "select_n", "slice", "split", "squeeze", "stop_gradient"),
        "transpose",
    )
)

finfo: Any = jnp.finfo


class Rounding(NamedTuple):
    """How coarse numbers are; the larger of two is the coarser.

    Attributes:
        eps: Their relative rounding error; 0 if nothing was rounded.
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
    """Finds the coarsest rounding on the way to each output of a function.

    What the function is called with, and what it closes over, counts as exact.

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
    jaxpr = jax.make_jaxpr(lambda *own: jax.tree.leaves(function(*own)))(*args).jaxpr
    return _run(jaxpr, [NONE] * len(jaxpr.invars))


def _run(jaxpr: Jaxpr, inputs: Sequence[Rounding]) -> list[Rounding]:
    """Carries roundings from a jaxpr's inputs to its outputs."""
    found: dict[Any, Rounding] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Any) -> Rounding:
        return NONE if isinstance(atom, Literal) else found.get(atom, NONE)

    for eqn in jaxpr.eqns:
        outputs = _equation(eqn, [read(each) for each in eqn.invars])
        found.update(zip(eqn.outvars, outputs, strict=True))
    return [read(each) for each in jaxpr.outvars]


def _equation(eqn: JaxprEqn, inputs: list[Rounding]) -> list[Rounding]:
    name = eqn.primitive.name
    bodies = list(_bodies(eqn))
    if name == "while":
        return _while(eqn, inputs)
    if name == "scan":
        consts, carries = eqn.params["num_consts"], eqn.params["num_carry"]
        return _repeat(bodies[0], inputs[:consts], inputs[consts:], carries)
    if name == "cond":
        branches = [_run(each, inputs[1:]) for each in bodies]
        return [max(inputs[0], *each) for each in zip(*branches, strict=True)]
    if bodies and all(
        (len(each.invars), len(each.outvars)) == (len(inputs), len(eqn.outvars))
        for each in bodies
    ):  # a call, such as jit, remat and those that have a rule of their own
        outputs = [_run(each, inputs) for each in bodies]
        return [max(each) for each in zip(*outputs, strict=True)]
    if bodies:  # it is not known what belongs to what
        inner = [_run_all(each) for each in bodies]
        return [max(NONE, *inputs, *inner)] * len(eqn.outvars)
    coarsest = max(inputs, default=NONE)
    if name in _EXACT:
        return [coarsest] * len(eqn.outvars)
    return [max(coarsest, _own(eqn, var)) for var in eqn.outvars]


def _own(eqn: JaxprEqn, var: Any) -> Rounding:
    own = rounding_of(var.aval.dtype)
    if eqn.primitive.name == "reduce_precision":
        bits = eqn.params["mantissa_bits"]
        return max(own, Rounding(2.0**-bits, f"{bits} bits"))
    return own


def _while(eqn: JaxprEqn, inputs: list[Rounding]) -> list[Rounding]:
    first = eqn.params["cond_nconsts"]
    second = first + eqn.params["body_nconsts"]
    condition, body = eqn.params["cond_jaxpr"].jaxpr, eqn.params["body_jaxpr"].jaxpr
    carries = len(inputs) - second
    outputs = _repeat(body, inputs[first:second], inputs[second:], carries)
    [turns] = _run(condition, [*inputs[:first], *outputs])
    return [max(turns, each) for each in outputs]


def _repeat(
    body: Jaxpr, consts: list[Rounding], inputs: list[Rounding], carries: int
) -> list[Rounding]:
    """Runs the body of a loop until nothing gets coarser."""
    while True:
        outputs = _run(body, [*consts, *inputs])
        carried = list(map(max, inputs[:carries], outputs[:carries]))
        if carried == inputs[:carries]:
            return [*carried, *outputs[carries:]]
        inputs = [*carried, *inputs[carries:]]


def _run_all(jaxpr: Jaxpr) -> Rounding:
    """The coarsest rounding anywhere in a jaxpr."""
    own = [_own(eqn, var) for eqn in jaxpr.eqns for var in eqn.outvars]
    inner = [_run_all(each) for eqn in jaxpr.eqns for each in _bodies(eqn)]
    return max(NONE, *own, *inner)


def _bodies(eqn: JaxprEqn) -> Iterator[Jaxpr]:
    for value in eqn.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, Jaxpr):
                yield each
