"""Plans among the arguments of a function, and the tier of programs that they name."""

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Literal

import jax
import numpy as np

from edbatch.target import Option, Target

Tier = Literal["fine", "coarse"]

_TRACES = itertools.count(1)


def in_tier(tree: Any, tier: Tier) -> Any:
    """Returns arguments whose plans name a tier.

    Args:
        tree: Any pytree, with plans anywhere in it: all whose type has `in_tier`.
        tier: The tier.

    Returns:
        The same pytree with other plans.
    """
    return jax.tree.map(
        lambda part: part.in_tier(tier) if _is_plan(part) else part,
        tree,
        is_leaf=_is_plan,
    )


def has_other_tier(tree: Any, tier: Tier) -> bool:
    """Tells whether a pytree has plans, and some that do not name the tier yet."""
    return any(
        part.in_tier(tier) is not part
        for part in jax.tree.leaves(tree, is_leaf=_is_plan)
        if _is_plan(part)
    )


def names_coarse(tree: Any) -> bool:
    """Tells whether a pytree has plans, and all of them name the coarse tier."""
    plans = list(filter(_is_plan, jax.tree.leaves(tree, is_leaf=_is_plan)))
    return bool(plans) and not has_other_tier(plans, "coarse")


def compiler_options(tree: Any) -> dict[str, Any]:
    """Returns the options of XLA that all plans in a pytree have in common.

    The program is compiled by one set of options, for plans of cells that may differ.

    Args:
        tree: Any pytree, with plans anywhere in it, of the tier that is compiled.

    Returns:
        Those that this version of XLA knows, by name; none where there is no plan.
    """
    plans = [
        part.compiler_options().items()
        for part in jax.tree.leaves(tree, is_leaf=_is_plan)
        if hasattr(type(part), "compiler_options")
    ]
    common = set(plans[0]).intersection(*plans[1:]) if plans else set()
    return known_options(sorted(common))


def known_options(options: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Returns those of some options of XLA that this version knows."""
    return {name: value for name, value in options if _is_known(name, value)}


def try_options(target: Target) -> None:
    """Finds out which options of a target XLA knows, by small programs, once.

    Whoever counts programs calls it before, or counts these.

    Args:
        target: The target.
    """
    known_options(target.coarse_options + target.small_product_options)


@functools.cache
def _is_known(name: str, value: Option) -> bool:
    """Tells whether XLA takes an option; their names change from version to version."""
    identity = jax.jit(lambda x: x).lower(np.float32(0))
    given: dict[str, Any] = {name: value}
    try:
        identity.compile(compiler_options=given)
    except Exception:  # an error of XLA's own, of a class that JAX does not name
        return False
    return True


def run_in_tier(function: Callable[..., Any], tier: Tier) -> Callable[..., Any]:
    """Returns a function that runs plans in a tier, whichever they name.

    Args:
        function: A function of plans.
        tier: The tier.

    Returns:
        A new function with the same arguments.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = in_tier((args, kwargs), tier)
        return function(*args, **kwargs)

    return run


def new_trace_number() -> int:
    """Returns a number for `run_afresh` that nothing was traced by."""
    return next(_TRACES)


def run_afresh(
    function: Callable[..., Any], tier: Tier | None = None
) -> Callable[..., Any]:
    """Returns a function of which JAX has traced nothing, nor of what it calls.

    JAX keeps what functions of `jax.jit` were traced to, for plans that it has met;
    these are others to it. So each trace reads the variables of its moment.

    Args:
        function: A function of plans.
        tier: The tier in which it runs plans; None for those that they name.

    Returns:
        A new function with the same arguments.
    """
    number = new_trace_number()

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if tier is not None:
            args, kwargs = in_tier((args, kwargs), tier)
        args, kwargs = _in_trace((args, kwargs), number)
        return _in_trace(function(*args, **kwargs), 0)  # a plan may be a result

    return run


def run_numbered(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Returns a function of which JAX has traced nothing.

    Args:
        function: A function of plans.
        number: The number of its traces, which share with others of this number what
            they call; plans that have one by `run_afresh` keep it.

    Returns:
        A new function with the same arguments.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _in_trace((args, kwargs), number, before=0)
        return _in_trace(function(*args, **kwargs), 0, before=number)

    return run


def _in_trace(tree: Any, number: int, before: int | None = None) -> Any:
    """Gives plans the number of a trace; with `before` those that have this number."""

    def renumbered(part: Any) -> Any:
        if not hasattr(type(part), "in_trace") or part.trace == number:
            return part
        return part.in_trace(number) if before in (None, part.trace) else part

    return jax.tree.map(renumbered, tree, is_leaf=_is_plan)


def _is_plan(part: object) -> bool:
    return hasattr(type(part), "in_tier")
