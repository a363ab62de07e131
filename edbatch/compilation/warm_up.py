"""Compiling ahead, for minibatches like those of a sample."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from edbatch.arguments import check_number
from edbatch.compilation.tiered_function import TieredFunction
from edbatch.compilation.worker import Pending
from edbatch.errors import PlanError

_Call = tuple[TieredFunction, tuple[Any, ...]]


def plan_all(
    plan: Callable[[Sequence[Any]], Any],
    recordings: Sequence[Any],
    batch_sizes: Iterable[int] | None,
) -> list[Any]:
    """Plans minibatches of a sample, of each size.

    Buckets grow with what is planned, so all is planned twice: the plans of the second
    round are those that calls will have.

    Args:
        plan: Plans a minibatch.
        recordings: The sample.
        batch_sizes: Instances per minibatch; by default one of all.

    Returns:
        The plans.

    Raises:
        PlanError: A size is no whole number above 0.
    """
    sizes = [max(1, len(recordings))] if batch_sizes is None else list(batch_sizes)
    for size in sizes:
        check_number(PlanError, "a batch size of warm_up", size, 1, whole=True)
    minibatches = [each for size in sizes for each in _cut(recordings, size)]
    for each in minibatches:
        plan(each)
    return [plan(each) for each in minibatches]


def warm_up(calls: Iterable[_Call], block: bool) -> Pending:
    """Compiles ahead for calls.

    Args:
        calls: Functions and arguments.
        block: Whether to compile here and now, or in the background.

    Returns:
        The handle.
    """
    new = {}
    for function, arguments in calls:
        if (programs := function.missing(*arguments)) is not None:
            new[id(programs)] = (function, arguments)
    if block:
        for function, arguments in new.values():
            function.warm_up(*arguments)
        return Pending(len(new))
    pending = [
        function.warm_up_in_background(*arguments)
        for function, arguments in new.values()
    ]
    return Pending(len(new), [work for each in pending for work in each.works])


def _cut(recordings: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Cuts a sample into minibatches; the last one is filled from the beginning."""
    if not recordings:
        return [recordings]
    count = -(-len(recordings) // size)
    repeated = list(recordings) * -(-count * size // len(recordings))
    return [repeated[k * size : (k + 1) * size] for k in range(count)]
