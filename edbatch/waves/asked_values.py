"""Values that instances have asked for, and where each of them will stand."""

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

# What holds no handle, or none of the result's: an exception leads to all variables of
# the functions that it went through.
_PLAIN = (
    *(np.ndarray, np.generic, Array, Number, str, bytes, type(None)),
    *(type, FunctionType, ModuleType, FrameType, TracebackType),
)
_MOST_SEEN = 10_000  # objects that one leaf leads to


class Asked(NamedTuple):
    """Values that are being computed, for the instances that wait for them.

    Attributes:
        values: By array kind, ``[n, ...]``; on the device.
        places: Of each instance, the array kind and the row of each value.
    """

    values: dict[int, Array]
    places: list[tuple[InstanceRun, list[tuple[int, int]]]]


def find_asked(
    waiting: Sequence[InstanceRun],
) -> tuple[dict[int, list[int]], list[tuple[InstanceRun, list[tuple[int, int]]]]]:
    """Lists the values that are asked for.

    Args:
        waiting: Instances that wait for values.

    Returns:
        The numbers of the values by array kind; and for each instance the array kind of
        each of its values, and its place among those of that kind.
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
    """Returns the handles in what an instance has returned.

    Args:
        run: The instance, which has ended.

    Returns:
        The handles, in the order of the result's leaves.

    Raises:
        RecordingError: One belongs to another instance: its number means another value
            here, or none. Or one stands in an object that is no pytree, where nobody
            would find it.
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
    """Refuses an object that is no pytree and holds an output of a cell."""
    name = type(leaf).__name__
    if isinstance(leaf, Iterator):
        raise RecordingError(
            f"the model returns an iterator, of type {name}, which would run after the"
            " model has ended; return a list"
        )
    if inspect.isawaitable(leaf):
        if inspect.iscoroutine(leaf):
            leaf.close()  # else Python warns that nobody waited for it
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
