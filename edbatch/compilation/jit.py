"""`eb.jit`: `jax.jit` for functions of plans."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from edbatch.compilation.settings import Tiers, check_tiers
from edbatch.compilation.signature import StaticArguments
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.errors import EdbatchError, shown


def jit(
    function: Callable[..., Any] | None = None,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    tiers: Tiers | None = None,
) -> Any:
    """Compiles a function of plans like `jax.jit`, but without a long first call.

    For each new signature a coarse program of the plans is compiled and run; compiling
    it takes a fraction of the time. When it runs for the third time, a background
    thread starts to compile the fine program. Once that is compiled, calls run it; no
    call waits for it. The results of both agree within rounding. Functions without
    plans in their arguments are compiled as by `jax.jit`.

    As with `jax.jit`, variables that the function reads besides its arguments (globals,
    closures, attributes) keep the values that they had at the first call. If such a
    variable has changed by the time the fine program is compiled, the coarse one stays
    and a warning is logged. Pass values that change as arguments.

    Args:
        function: The function, such as a training step that calls `apply` of a batched
            function and `jax.grad`; plans may occur anywhere in its arguments. Without
            it, `jit` returns a decorator.
        static_argnums: As for `jax.jit`.
        static_argnames: As for `jax.jit`.
        donate_argnums: As for `jax.jit`.
        donate_argnames: As for `jax.jit`.
        tiers: ``"auto"``: as described. ``"fine"``: the fine program only, so that
            results are reproducible to the bit. ``"coarse"``: the coarse one only. The
            default is the setting of `use_tiers`, ``"auto"`` unless set.

    Returns:
        The compiled function.

    Raises:
        EdbatchError: `function` is not callable, or `tiers` is invalid.

    Example:
        >>> import edbatch as eb
        >>> import jax
        >>> import jax.numpy as jnp
        >>> double = eb.cell(lambda params, x: params * x)
        >>> batched = eb.batch(double, params=jnp.float32(2))
        >>> @eb.jit
        ... def loss_and_slope(params, plan):
        ...     loss = lambda params: batched.apply(params, plan).sum()
        ...     return jax.value_and_grad(loss)(params)
        >>> loss, slope = loss_and_slope(jnp.float32(2), batched.plan([1.0, 5.0]))
        >>> loss.item(), slope.item()
        (12.0, 6.0)
    """
    if tiers is not None:
        check_tiers("tiers of eb.jit", tiers)
    if function is None:
        return functools.partial(
            jit,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            tiers=tiers,
        )
    if not callable(function):
        raise EdbatchError(
            f"eb.jit takes a function but received {shown(function)}, of type"
            f" {type(function).__name__}; pass the function itself, not its result"
        )
    donated = {"donate_argnums": donate_argnums, "donate_argnames": donate_argnames}
    return TieredFunction(
        function,
        StaticArguments.of(function, static_argnums, static_argnames),
        {name: each for name, each in donated.items() if each is not None},
        tiers,
        reads_variables=True,
    )
