"""A loader's state for checkpoints, and the check that it fits a loader."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from edbatch.errors import LoaderError, shown
from edbatch.graph.dataflow_graph import DataflowGraph
from edbatch.graph.type_table import TypeTable

_POSITION = ("epoch", "step")
FRESH = "read anew"  # in place of a digest, for which all data would have to be read


@dataclass(frozen=True)
class LoaderState:
    """A position in the minibatches of a run, and the settings that determine them.

    Attributes:
        epoch: Epoch of the next minibatch, from 0.
        step: Its position in the epoch, from 0.
        seed: Seed of the run.
        batch_size: Instances per minibatch.
        shuffle: Whether the order is random.
        group_by_size: Whether the instances of a minibatch have similar sizes.
        drop_last: Whether a last minibatch that is not full is left out.
        instances: Number of instances.
        data: Digest of the instances, see `digest`.
    """

    epoch: int
    step: int
    seed: int
    batch_size: int
    shuffle: bool
    group_by_size: bool
    drop_last: bool
    instances: int
    data: str

    def resumed(self, state: Any, steps: int) -> "LoaderState":
        """Returns this state at a saved position, if that belongs to the same run.

        Args:
            state: A saved state, as a mapping.
            steps: Number of minibatches of an epoch.

        Returns:
            The state at the saved position.

        Raises:
            LoaderError: `state` is not a state, or belongs to other data or settings.
        """
        names = [each.name for each in fields(self)]
        if not isinstance(state, Mapping) or set(state) != set(names):
            found = sorted(map(str, state)) if isinstance(state, Mapping) else state
            raise LoaderError(
                f"a loader's state has the entries {', '.join(names)}, but this one is"
                f" {shown(found, 150)}; usually another part of a checkpoint; pass what"
                " loader.state() gave"
            )
        for name in names:
            own, other = getattr(self, name), state[name]
            if name not in _POSITION and not _same(own, other):
                raise _other_run(name, other, own)
        epoch, step = (_number(state[name]) for name in _POSITION)
        whole = all(
            isinstance(each, int) and not isinstance(each, bool)
            for each in (epoch, step)
        )
        if not (whole and epoch >= 0 <= step < steps):
            raise LoaderError(
                "a state's epoch is 0 or more and its step below the"
                f" {steps} minibatches of an epoch, but they are {shown(epoch)} and"
                f" {shown(step)}; usually a state edited by hand; pass what"
                " loader.state() gave"
            )
        return replace(self, epoch=epoch, step=step)


def _number(entry: Any) -> Any:
    """Converts to a Python number: checkpoints may return arrays or NumPy integers."""
    is_scalar = hasattr(entry, "dtype") and getattr(entry, "shape", None) == ()
    return np.asarray(entry).item() if is_scalar else entry


def _same(own: object, other: object) -> bool:
    equal = np.asarray(own == other)  # checkpoints may return arrays
    return equal.ndim == 0 and bool(equal)


def _other_run(name: str, other: object, own: object) -> LoaderError:
    fresh = _same(FRESH, other), own == FRESH
    if name == "data" and any(fresh):
        its, this = (
            "reads instances each time" if x else "keeps recordings" for x in fresh
        )
        difference = f"it is of a loader that {its}, and this one {this} (keep=)"
    elif name == "data":
        difference = "its instances are not this loader's (their digests differ)"
    else:
        difference = f"its {name} is {shown(other)} and this loader's is {own!r}"
    return LoaderError(
        "a state can only be restored into a loader of the same data and settings, but"
        f" {difference}; usually a checkpoint of another run; make the loader as it was"
        " made then, or leave the state out to start from the beginning"
    )


def digest(recordings: Sequence[DataflowGraph]) -> str:
    """Returns a hash of instances and their order.

    It does not depend on type numbers, which depend on what was recorded before.
    """
    found = hashlib.blake2b(digest_size=8)
    name = cache(_name)  # by table (there is one) and type
    for each in recordings:
        avals = each.types.avals
        pools = sorted(
            (repr(avals[kind].shape), str(pool.dtype), pool.tobytes())
            for kind, pool in each.externals.items()
        )
        # Types in the order of their first nodes: numbers depend on earlier recordings.
        types, first, place = np.unique(
            each.node_type, return_index=True, return_inverse=True
        )
        order = np.argsort(first)
        names = [name(each.types, int(types[k])) for k in order]
        found.update(repr((each.num_nodes, pools, names)).encode())
        integers = [np.argsort(order)[place], each.operands, each.external_rows]
        integers += [*each.outputs.columns, *each.outputs.lengths]
        for array in integers:
            found.update(array.astype(np.int32).tobytes())
    return found.hexdigest()


def _name(types: TypeTable, type_id: int) -> tuple[str, ...]:
    """Names a type without numbers that depend on earlier recordings."""
    node_type = types.types[type_id]
    key = node_type.key
    constants = [
        repr(content)
        for kind, content in node_type.template.leaves
        if kind == "static" and isinstance(content, str | int | float)
    ]
    kinds = (*node_type.operand_kinds, *node_type.external_kinds)
    shapes = [str(types.avals[kind]) for kind in kinds]
    return key.cell, key.path, str(key.arity), *shapes, *constants
