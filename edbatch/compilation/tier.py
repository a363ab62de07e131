"""Finds the plans in a function's arguments, and reads or sets their tier."""

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
    """Returns a pytree in which all plans name a tier.

    Args:
        tree: Any pytree. Its plans are all parts whose type has `in_tier`.
        tier: The tier.

    Returns:
        The same pytree with its plans replaced.
    """
    return jax.tree.map(
        lambda part: part.in_tier(tier) if _is_plan(part) else part,
        tree,
        is_leaf=_is_plan,
    )


def has_other_tier(tree: Any, tier: Tier) -> bool:
    """Returns whether a pytree has plans that do not name the tier yet."""
    return any(
        part.in_tier(tier) is not part
        for part in jax.tree.leaves(tree, is_leaf=_is_plan)
        if _is_plan(part)
    )


def names_coarse(tree: Any) -> bool:
    """Returns whether a pytree has plans, and all of them name the coarse tier."""
    plans = list(filter(_is_plan, jax.tree.leaves(tree, is_leaf=_is_plan)))
    return bool(plans) and not has_other_tier(plans, "coarse")


def compiler_options(tree: Any) -> dict[str, Any]:
    """Returns the XLA options that all plans in a pytree have in common.

    A program is compiled with one set of options, for plans whose cells may differ.

    Args:
        tree: Any pytree with plans in it, of the tier that is compiled.

    Returns:
        The common options that this version of XLA knows, by name; empty if the pytree
        has no plan.
    """
    plans = [
        part.compiler_options().items()
        for part in jax.tree.leaves(tree, is_leaf=_is_plan)
        if hasattr(type(part), "compiler_options")
    ]
    common = set(plans[0]).intersection(*plans[1:]) if plans else set()
    return known_options(sorted(common))


def known_options(options: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Keeps only the options that this version of XLA knows."""
    return {name: value for name, value in options if _is_known(name, value)}


def try_options(target: Target) -> None:
    """Finds out which of a target's options XLA knows, by compiling small programs.

    The answers are cached. Call it before counting compilations, so that these small
    programs are not counted.

    Args:
        target: The target.
    """
    known_options(target.coarse_options + target.small_product_options)


@functools.cache
def _is_known(name: str, value: Option) -> bool:
    """Returns whether XLA accepts an option; names change between versions."""
    identity = jax.jit(lambda x: x).lower(np.float32(0))
    given: dict[str, Any] = {name: value}
    try:
        identity.compile(compiler_options=given)
    except Exception:  # an XLA error, whose class JAX does not export
        return False
    return True


def run_in_tier(function: Callable[..., Any], tier: Tier) -> Callable[..., Any]:
    """Wraps a function so that its plans run in a tier, whichever tier they name.

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
    """Returns a trace number that has not been used before."""
    return next(_TRACES)


def with_fresh_trace(
    function: Callable[..., Any], tier: Tier | None = None
) -> Callable[..., Any]:
    """Wraps a function so that JAX traces it, and all that it calls, from scratch.

    JAX caches the traces of jitted functions by the plans that they were called with.
    The wrapper gives plans a new trace number, so no cached trace matches, and tracing
    reads the current values of variables.

    Args:
        function: A function of plans.
        tier: The tier in which plans run; None for the tier that each plan names.

    Returns:
        A new function with the same arguments.
    """
    number = new_trace_number()

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if tier is not None:
            args, kwargs = in_tier((args, kwargs), tier)
        args, kwargs = _in_trace((args, kwargs), number)
        return _in_trace(function(*args, **kwargs), 0)  # results may contain plans

    return run


def run_numbered(function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Returns a function that is new to JAX and traced under a given trace number.

    Args:
        function: A function of plans.
        number: The trace number. Functions with the same number share the traces of
            what they call. Plans with a number from `with_fresh_trace` keep theirs.

    Returns:
        A new function with the same arguments.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _in_trace((args, kwargs), number, before=0)
        return _in_trace(function(*args, **kwargs), 0, before=number)

    return run


def _in_trace(tree: Any, number: int, before: int | None = None) -> Any:
    """Sets the trace number of plans; with `before`, only if theirs equals it."""

    def renumbered(part: Any) -> Any:
        if not hasattr(type(part), "in_trace") or part.trace == number:
            return part
        return part.in_trace(number) if before in (None, part.trace) else part

    return jax.tree.map(renumbered, tree, is_leaf=_is_plan)


def _is_plan(part: object) -> bool:
    return hasattr(type(part), "in_tier")
