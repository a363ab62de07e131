"""Compiles programs ahead of time, for minibatches like those of a sample."""

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
    """Cuts a sample into minibatches of each size and plans them.

    Buckets grow while minibatches are planned, so everything is planned twice: the
    plans of the second round have the sizes of later calls.

    Args:
        plan: Plans a minibatch.
        recordings: The sample.
        batch_sizes: Numbers of instances per minibatch; by default one minibatch of all
            instances.

    Returns:
        The plans of the second round.

    Raises:
        PlanError: A size is not a whole number above 0.
    """
    sizes = [max(1, len(recordings))] if batch_sizes is None else list(batch_sizes)
    for size in sizes:
        check_number(PlanError, "a batch size of warm_up", size, 1, whole=True)
    minibatches = [each for size in sizes for each in _cut(recordings, size)]
    for each in minibatches:
        plan(each)
    return [plan(each) for each in minibatches]


def warm_up(calls: Iterable[_Call], block: bool) -> Pending:
    """Compiles the programs of calls without making the calls.

    Args:
        calls: Functions and their arguments.
        block: Whether to compile before returning, rather than in the background.

    Returns:
        The handle of the new programs.
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
    """Cuts a sample into minibatches; fills up the last one from the start."""
    if not recordings:
        return [recordings]
    count = -(-len(recordings) // size)
    repeated = list(recordings) * -(-count * size // len(recordings))
    return [repeated[k * size : (k + 1) * size] for k in range(count)]
