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
    """Compiles a function of plans, as `jax.jit` does, without a long wait.

    For each new signature a coarse program of the plans is compiled, in a fraction of
    the time, and runs. Once it ran three times, a background thread compiles the fine
    program; the first call after that runs it, and no call waits for it. Results of
    both agree within rounding. Functions whose arguments hold no plan are compiled as
    by `jax.jit`.

    As with `jax.jit`, what the function reads beside its arguments (a global variable,
    one of a function around it, an attribute) keeps the value that it had at the first
    call. Where such a variable has changed by the time the fine program is made, the
    coarse one stays and a warning is logged: pass what changes as an argument.

    Args:
        function: The function, such as a step of training that calls `apply` of a
            batched function and `jax.grad`; plans may stand anywhere in its arguments.
            Without it, `jit` returns a decorator.
        static_argnums: As for `jax.jit`.
        static_argnames: As for `jax.jit`.
        donate_argnums: As for `jax.jit`.
        donate_argnames: As for `jax.jit`.
        tiers: ``"auto"`` as described; ``"fine"`` for the fine program only, so that
            results are reproducible to the bit; ``"coarse"`` for the coarse one only.
            By default what `use_tiers` set, ``"auto"`` if nothing.

    Returns:
        The compiled function.

    Raises:
        EdbatchError: `function` is none, or there are no such tiers.

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
