"""Makes a cell of a Flax module in one line."""

from collections.abc import Sequence
from typing import Any

from flax import linen, nnx

from edbatch.errors import CellError
from edbatch.flax.linen_cell import LinenFunction
from edbatch.flax.nnx_cell import NnxFunction
from edbatch.flax.signature import flags
from edbatch.graph.cell import Cell


def cell(
    module: linen.Module | nnx.Module,
    method: str = "__call__",
    *,
    rngs: str | Sequence[str] = (),
    static: Sequence[str] = (),
    **options: Any,
) -> Cell:
    """Makes a cell of a Flax module, or of one of its methods.

    The cell takes the module's parameters first, as Flax stores them, and then the
    method's arguments, for one instance:

    * linen: the variables that ``module.init`` returned;
    * nnx: ``nnx.state(module)``; its parameters alone (``nnx.state(module,
      nnx.Param)``) if it has no other arrays; the module itself; or another module of
      its class. The module is not written to.

    Modules that draw random numbers get a key for each call from ``batched.apply(...,
    rng=key)``. Without a key they run in evaluation mode: linen methods with an
    argument `deterministic` get True, nnx modules run as after ``module.eval()``.

    Args:
        module: The module.
        method: Name of the method to call.
        rngs: linen: the streams that the module draws random numbers from, such as
            ``"dropout"``. The streams of nnx modules are found automatically.
        static: Arguments of the method that are compile-time constants. Flags are
            always static: arguments whose default is a bool or whose annotation is
            ``bool`` or ``bool | None``.
        **options: As for `edbatch.cell`.

    Returns:
        The cell.

    Raises:
        CellError: `module` is not a module, or has no such method; or an option names
            an argument that the method does not have.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import edbatch as eb, edbatch.flax
        >>> from flax import linen as nn
        >>> gru = nn.GRUCell(features=3)
        >>> step = eb.flax.cell(gru)
        >>> def encode(params, sequence):
        ...     state = jnp.zeros(3)
        ...     for x in sequence:
        ...         state, _ = step(params, state, x)
        ...     return state
        >>> sequences = [jnp.ones((n, 2)) for n in (1, 3, 2)]
        >>> params = gru.init(jax.random.key(0), jnp.zeros(3), sequences[0][0])
        >>> eb.batch(encode)(params, sequences).shape
        (3, 3)
    """
    function: LinenFunction | NnxFunction
    if isinstance(module, nnx.Module):
        if rngs:
            raise CellError(
                f"rngs names streams of linen modules, but {type(module).__name__} is"
                " of nnx; leave it out: its streams are found by themselves"
            )
        function = NnxFunction(module, method)
    elif isinstance(module, linen.Module):
        streams = (rngs,) if isinstance(rngs, str) else tuple(rngs)
        function = LinenFunction(module, method, streams)
    else:
        raise _no_module(module)
    static = tuple(dict.fromkeys((*static, *flags(function.__signature__))))
    return Cell(function, static=static, **options)


def _no_module(found: Any) -> CellError:
    name = getattr(found, "__name__", type(found).__name__)
    if isinstance(found, type):
        hint = f", a class; make a module of it, {name}(...)"
    else:
        hint = "; mark a function with @eb.cell"
    return CellError(
        f"eb.flax.cell takes a module of flax.linen or flax.nnx but received {name}"
        + hint
    )
