"""Values that instances have asked for, and where each of them will stand."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import Array

from edbatch.graph.handle import Handle, reject_foreign
from edbatch.graph.output_recording import RETURNED
from edbatch.waves.instance_run import InstanceRun


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
            here, or none.
    """
    found = []
    for each in jax.tree.leaves(run.result):
        if type(each) is not Handle:
            continue
        if each._recorder is not run:
            reject_foreign(each, RETURNED)
        found.append(each)
    return found
