"""Finds the values that instances ask for, and the handles that they return."""

import gc
import inspect
from collections.abc import Iterator, Sequence
from numbers import Number
from types import FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from edbatch.errors import RecordingError
from edbatch.graph.handle import Handle, reject_foreign
from edbatch.graph.output_recording import RETURNED
from edbatch.waves.instance_run import InstanceRun

# Types that are not searched for handles: they hold none, or none of the result. For
# example, a traceback refers to all variables of the functions that it passed through.
_PLAIN = (
    *(np.ndarray, np.generic, Array, Number, str, bytes, type(None)),
    *(type, FunctionType, ModuleType, FrameType, TracebackType),
)
_MOST_SEEN = 10_000  # most objects that are searched per leaf


class Asked(NamedTuple):
    """Values that are being computed, for the instances that wait for them.

    Attributes:
        values: The values by array kind, ``[n, ...]``; on the device.
        places: For each instance, the array kind and the row of each of its values.
    """

    values: dict[int, Array]
    places: list[tuple[InstanceRun, list[tuple[int, int]]]]


def find_asked(
    waiting: Sequence[InstanceRun],
) -> tuple[dict[int, list[int]], list[tuple[InstanceRun, list[tuple[int, int]]]]]:
    """Lists the values that instances ask for.

    Args:
        waiting: Instances that wait for values.

    Returns:
        The numbers of the values by array kind; and for each instance the array kind
        and the index, within that kind, of each of its values.
    """
    asked: dict[int, list[int]] = {}
    places = []
    for run in waiting:
        own = []
        for handle in run.asked:
            values = asked.setdefault(handle._kind, [])
            own.append((handle._kind, len(values)))
            values.append(handle._value)
        places.append((run, own))
    return asked, places


def returned_handles(run: InstanceRun) -> list[Handle]:
    """Returns the handles in an instance's result.

    Args:
        run: The instance, which has ended.

    Returns:
        The handles, in the order of the result's leaves.

    Raises:
        RecordingError: A handle belongs to another instance, so its number denotes
            another value here, or none. Or a handle is inside an object that is not a
            pytree, where it would be missed.
    """
    found = []
    for each in jax.tree.leaves(run.result):
        if type(each) is Handle:
            if each._recorder is not run:
                reject_foreign(each, RETURNED)
            found.append(each)
        elif not isinstance(each, _PLAIN):
            _check_opaque(each)
    return found


def _check_opaque(leaf: Any) -> None:
    """Raises `RecordingError` for a non-pytree object that holds a cell's output."""
    name = type(leaf).__name__
    if isinstance(leaf, Iterator):
        raise RecordingError(
            f"the model returns an iterator, of type {name}, which would run after the"
            " model has ended; return a list"
        )
    if inspect.isawaitable(leaf):
        if inspect.iscoroutine(leaf):
            leaf.close()  # otherwise Python warns that it was never awaited
        raise RecordingError(
            f"the model returns a {name}, which nobody would wait for; write the model"
            " with def, not async def"
        )
    seen: set[int] = set()
    waiting = [leaf]
    while waiting and len(seen) < _MOST_SEEN:
        each = waiting.pop()
        if type(each) is Handle:
            raise RecordingError(
                f"the model returns an object of type {name}, which is no pytree of"
                " JAX and holds outputs of cells; return a dict, a tuple or a list, or"
                " register the class, for data classes by"
                " jax.tree_util.register_dataclass"
            )
        if id(each) not in seen and not isinstance(each, _PLAIN):
            seen.add(id(each))
            waiting += gc.get_referents(each)
