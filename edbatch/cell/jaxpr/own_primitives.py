"""Primitives of edbatch: two identities, and the call of a stored program."""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from edbatch.cell.jaxpr.internals import Primitive, ad, batching, mlir
from edbatch.cell.primitives import OF_EACH_ROW


def reverse_only_identity(refuse: Callable[..., NoReturn]) -> Callable[[Any], Array]:
    """Makes an identity that is differentiated in reverse mode only.

    Its tangent passes through a second primitive. Reverse mode transposes that
    primitive, which removes it before anything is computed.

    Args:
        refuse: Called if the tangent is computed, mapped or compiled; raises.

    Returns:
        The identity, of one floating-point array.
    """
    value, tangent = Primitive("reverse_only"), Primitive("tangent_of_reverse_only")

    def jvp(primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
        [own], [moved] = primals, tangents
        return value.bind(own), moved if type(moved) is ad.Zero else tangent.bind(moved)

    value.def_abstract_eval(lambda aval: aval)
    value.def_impl(lambda array: array)
    batching.defvectorized(value)
    mlir.register_lowering(value, lambda _, array: [array])
    ad.primitive_jvps[value] = jvp

    tangent.def_abstract_eval(lambda aval: aval)
    tangent.def_impl(refuse)
    batching.primitive_batchers[tangent] = refuse
    mlir.register_lowering(tangent, refuse)
    ad.deflinear2(tangent, lambda cotangent, _: [cotangent])
    return lambda array: value.bind(array)


def _of_each_row() -> Callable[[Any, Any], Array]:
    """Makes the primitive of `of_each_row`."""
    call = Primitive(OF_EACH_ROW)

    def batch(arrays: Sequence[Array], axes: Sequence[Any]) -> tuple[Array, Any]:
        value, row = arrays
        own, of_row = axes
        if own is not None or of_row is None:
            return call.bind(value, row), own
        return jnp.broadcast_to(value, (row.shape[of_row], *value.shape)), 0

    def jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Array, Any]:
        value, row = primals
        moved, _ = tangents
        same = type(moved) is ad.Zero
        return call.bind(value, row), moved if same else call.bind(moved, row)

    call.def_abstract_eval(lambda value, _: value)
    call.def_impl(lambda value, _: value)
    batching.primitive_batchers[call] = batch
    mlir.register_lowering(call, lambda _, value, __: [value])
    ad.primitive_jvps[call] = jvp
    ad.primitive_transposes[call] = lambda bar, *_: [bar, None]
    return lambda value, row: call.bind(value, row)


of_each_row = _of_each_row()
"""Returns its first argument; mapped by `jax.vmap` if either argument is mapped."""


class Stored(Protocol):
    """A function and its stored, lowered program.

    Attributes:
        platform: The platform that it was lowered for.
        results: Shapes and dtypes of the function's results.
    """

    platform: str
    results: Sequence[jax.ShapeDtypeStruct]

    def traced(self, *arrays: Any) -> Sequence[Any]:
        """Computes the function with JAX operations."""

    def kept(self, *arrays: Any) -> Sequence[Any]:
        """Runs the stored program."""


def stored_primitive() -> Callable[..., list[Array]]:
    """Makes a primitive that is lowered to a stored program.

    When lowered for another platform, and under `jax.vmap` and `jax.jvp`, it runs the
    function that the program was made from.

    Returns:
        A function of a `Stored` and the arguments of its function.
    """
    call = Primitive("stored_program")
    call.multiple_results = True
    instantiate: Any = ad.instantiate_zeros
    lower_function: Any = mlir.lower_fun

    def lower(context: Any, *arrays: Any, stored: Stored) -> Any:
        own = tuple(context.module_context.platforms) == (stored.platform,)
        run = stored.kept if own else stored.traced
        return lower_function(run, multiple_results=True)(context, *arrays)

    def batch(arrays: Any, axes: Any, *, stored: Stored) -> Any:
        mapped: Any = jax.vmap(lambda *own: list(stored.traced(*own)), tuple(axes))
        results = mapped(*arrays)
        return results, [0] * len(results)

    def jvp(primals: Any, tangents: Any, *, stored: Stored) -> Any:
        moved = tuple(instantiate(each) for each in tangents)
        return jax.jvp(lambda *own: list(stored.traced(*own)), tuple(primals), moved)

    call.def_impl(lambda *arrays, stored: list(stored.traced(*arrays)))
    call.def_abstract_eval(
        lambda *_, stored: [jax.typeof(each) for each in stored.results]
    )
    mlir.register_lowering(call, lower)
    batching.primitive_batchers[call] = batch
    ad.primitive_jvps[call] = jvp
    return lambda stored, *arrays: call.bind(*arrays, stored=stored)
