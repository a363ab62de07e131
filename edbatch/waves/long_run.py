"""Frees values that a long-running instance can no longer reach.

An instance that asks for values thousands of times, such as a decoder, keeps only few
of the handles that it received. After its 128th part (a part runs from one suspension
to the next, and records nodes), all of its new handles are stored in a list. A handle
to which only the list refers will never be read, so its row can be freed once no
pending node reads it. The list is searched only when arenas are full or it has grown
long, so a handle costs one append. Shorter instances pay nothing, and are freed when
they end.

Reference counts are exact here: anything that may read a value (a frame of a suspended
call stack, a closure, a container, `InstanceRun.asked`) refers to its handle.
"""

from sys import getrefcount
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from edbatch.graph.cell import Cell
from edbatch.graph.handle import Handle
from edbatch.waves.instance_run import InstanceRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edbatch.waves.pending import PendingNodes
    from edbatch.waves.value_rows import ValueRows

LONG = 128  # the part of an instance from which on its handles are watched
_FEW = 1024  # lists of fewer handles are searched only when arenas are full


def _references(handles: list[Handle]) -> list[int]:
    """Counts the references to each handle, including those made by counting."""
    return [getrefcount(each) for each in handles]


# Reference count of a handle to which only one list refers.
_LISTED_ONLY = _references([Handle()])[0]


class LongRun(InstanceRun):
    """An instance that has run in many parts; see `watch`.

    Attributes:
        handles: Handles received since `watch`, except those found gone by `look`.
        dropped: Numbers of values whose handles are gone but whose rows are not freed.
    """

    handles: list[Handle]
    dropped: list[int]
    _many: int

    def call(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records one call of a cell; see `Recorder.call`."""
        found = super().call(cell, args, kwargs)
        if type(found) is Handle:
            self.handles.append(found)
        else:
            leaves = jax.tree.leaves(found)
            self.handles += [each for each in leaves if type(each) is Handle]
        return found

    def look(self) -> None:
        """Finds the values whose handles are gone."""
        handles, kept = self.handles, []
        for each, count in zip(handles, _references(handles), strict=True):
            if count > _LISTED_ONLY:
                kept.append(each)
            else:
                self.dropped.append(each._value)
        self.handles, self._many = kept, 2 * len(kept) + _FEW

    def look_if_many(self) -> None:
        """Calls `look` if the list has grown long; amortized constant time."""
        if len(self.handles) > self._many:
            self.look()

    def forget_from(self, value: int) -> None:
        """Forgets the values from a number on, because they were cut off the tape."""
        self.handles = [each for each in self.handles if each._value < value]
        self.dropped = [each for each in self.dropped if each < value]

    def unfreed(self) -> np.ndarray:
        """Returns the numbers of all values that were not freed; ``[n] int64``."""
        held = [each._value for each in self.handles]
        return np.array(held + self.dropped, np.int64)


def watch(run: InstanceRun) -> LongRun:
    """Makes an instance keep the handles that it receives from now on.

    Args:
        run: The suspended instance.

    Returns:
        The same object; its class is now `LongRun`.
    """
    run.__class__ = LongRun
    assert isinstance(run, LongRun), "its class was set"
    run.handles, run.dropped, run._many = [], [], _FEW
    return run


def free_unreachable(
    runs: "Sequence[LongRun]", pending: "PendingNodes", rows: "ValueRows"
) -> None:
    """Frees the rows of values that nothing can read any more.

    Args:
        runs: Instances that have not been freed.
        pending: All nodes that have not run; the values that they read are kept.
        rows: The rows.
    """
    for run in runs:
        run.look()
    dropped = [np.array(run.dropped, np.int64) for run in runs]
    if not sum(map(len, dropped)):
        return
    is_read = pending.find_read(rows)
    for run, values in zip(runs, dropped, strict=True):
        free = (rows.of(values) >= 0) & ~is_read[values - rows.first]
        rows.forget(values[free])
        run.dropped = values[~free].tolist()
