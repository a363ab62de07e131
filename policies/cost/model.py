"""The cost model: measured times of a model's cells as a function of width.

Policies count batches as if all cost the same. In fact, a batch of a classifier is done
before a batch of a wide tree cell has read its weights. `edbatch calibrate`
measures the time of each type in chunks of each width. From these times, the cost model
predicts the time of a batch, the time of a schedule, and the cost of one more batch of
each type: the fixed part of a batch's time, independent of its number of nodes. The
fixed part is all that a better schedule can save, since every schedule runs the same
nodes.

Gain of minimizing time instead of the number of batches: 2 to 4% of the forward pass on
minibatches where the choice differs (lattices, trees of two types), none on trees of
one type and CLEVR programs. Predictions are 2 to 17% off (docs/results-policies.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from edbatch.errors import PolicyError, shown
from edbatch.graph.node_type import TypeKey
from edbatch.policies.files.json_file import COSTS, type_entry
from edbatch.schedule.schedule import Schedule

_LEAST_WEIGHT = 0.01
_MOST_US = 1e12  # eleven days
_WIDEST = 2**16  # rows; tables have four times as many columns


@dataclass(frozen=True)
class CostRecord:
    """The record of a calibration.

    Attributes:
        workload: Description of the measured workload, given by the user.
        device: Kind of device.
        jax: Version of JAX.
        hidden: Length of the model's states; None if the model is the user's own.
        batch_size: Instances per minibatch.
        minibatches: Number of measured minibatches.
        rounds: How many times each was measured.
        error_percent: Median relative error of predicted times, in percent, on
            minibatches that the costs were not fitted to; mean over policies.

    Example:
        >>> record = CostRecord("tree-lstm", "cpu", "0.10.2", 128, 64, 5, 7, 6.0)
        >>> record.workload, record.hidden
        ('tree-lstm', 128)
    """

    workload: str
    device: str
    jax: str
    hidden: int | None
    batch_size: int
    minibatches: int
    rounds: int
    error_percent: float


@dataclass(frozen=True)
class CostModel:
    """Measured costs of ``T`` types in chunks of ``W`` widths, in microseconds.

    Attributes:
        types: The types.
        widths: Widths of chunks, in rows, ascending.
        chunk_us: Time of one chunk of each width, per type; ``[T][W]``.
        measured_widths: Number of widths that were measured for each type, starting
            with the narrowest; the others, which the data do not need, are
            extrapolated.
        batches: Batches of each type per minibatch in the calibration.
        switch_us: Fixed time of a batch, besides its chunks.
        call_us: Fixed time of a minibatch, besides its batches.
        record: Record of the calibration.

    Raises:
        PolicyError: There is no type, the lengths do not agree, a width is out of
            range, or a time is negative or not finite.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> from edbatch.policies import Depth
        >>> costs = CostModel(
        ...     types=(TypeKey("a", "", 0), TypeKey("b", "", 0)),
        ...     widths=(2, 4),
        ...     chunk_us=((3.0, 4.0), (6.0, 10.0)),
        ...     measured_widths=(2, 2),
        ...     batches=(1.0, 2.0),
        ...     switch_us=1.0,
        ... )
        >>> [costs.batch_us(costs.types[0], count) for count in (1, 3, 5)]
        [4.0, 5.0, 8.0]
        >>> graph = tree("((aa)ba)b")
        >>> costs.schedule_us(Depth().schedule(graph), graph.type_keys)
        19.0
    """

    types: tuple[TypeKey, ...]
    widths: tuple[int, ...]
    chunk_us: tuple[tuple[float, ...], ...]
    measured_widths: tuple[int, ...]
    batches: tuple[float, ...]
    switch_us: float = 0.0
    call_us: float = 0.0
    record: CostRecord | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.chunk_us), len(self.measured_widths), len(self.batches)}
        if lengths != {len(self.types)} or any(
            len(each) != len(self.widths) for each in self.chunk_us
        ):
            raise PolicyError(
                f"costs name {len(self.types)} types and {len(self.widths)} widths but"
                " not one time for each of them; give one per type and width"
            )
        if not self.types:
            raise PolicyError(
                "costs need at least one type but there is none; calibrate the model"
                " whose minibatches they are to predict"
            )
        if (
            self.widths != tuple(sorted({*self.widths}))
            or not 1 <= min(self.widths, default=0) <= max(self.widths) <= _WIDEST
        ):
            raise PolicyError(
                "widths of chunks are ascending numbers of rows, from 1 to"
                f" {_WIDEST:,}, but are {shown(self.widths)}; give for example (8, 64,"
                " 512)"
            )
        if not all(1 <= each <= len(self.widths) for each in self.measured_widths):
            raise PolicyError(
                f"measured_widths must be from 1 to {len(self.widths)} for each type"
                f" but is {shown(self.measured_widths)}; calibrate again"
            )
        numbers = *chain(*self.chunk_us), *self.batches, self.switch_us, self.call_us
        for number in numbers:
            if not 0 <= number <= _MOST_US:  # nor NaN
                raise PolicyError(
                    f"a cost is a finite number, from 0 to {_MOST_US:.0e}, but one is"
                    f" {shown(number)}; calibrate again"
                )

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<CostModel of {len(self.types)} types in {len(self.widths)} widths>"

    def batch_us(self, key: TypeKey, count: int) -> float:
        """Returns the time of one batch.

        Args:
            key: The type of its nodes.
            count: Its number of nodes, at least 1.

        Returns:
            Microseconds, for the cheapest way to cut the batch into chunks.

        Raises:
            PolicyError: No type with this cell and parameter path was measured.
        """
        return float(self._batches_us(self.places((key,)), np.array([count]))[0])

    def schedule_us(self, schedule: Schedule, type_keys: Sequence[TypeKey]) -> float:
        """Returns the time of all batches of a schedule, without `call_us`.

        Args:
            schedule: The schedule.
            type_keys: The types of the scheduled graph.

        Returns:
            Microseconds.

        Raises:
            PolicyError: As `batch_us`.
        """
        place = self.places(type_keys)[schedule.batch_type]
        return float(self._batches_us(place, np.diff(schedule.batch_start)).sum())

    def affine_us(self, key: TypeKey) -> tuple[float, float]:
        """Splits the time of a batch into a fixed part and a part per node.

        Args:
            key: The type of its nodes.

        Returns:
            Both parts in microseconds, neither negative: a least-squares fit to the
            times of batches of up to four chunks of the largest width. Errors are
            relative to the time, and each doubling of the number of nodes has the same
            weight, so the fit is best for small batches, which a schedule could merge.

        Raises:
            PolicyError: As `batch_us`.
        """
        fixed, per_node = self._affine[self.places((key,))[0]]
        return float(fixed), float(per_node)

    def batch_overhead_us(self, type_keys: Sequence[TypeKey]) -> np.ndarray:
        """Returns the cost of one more batch of each type: the fixed part of its time.

        Args:
            type_keys: The types of a graph.

        Returns:
            Microseconds, ``[T] float64`` for T types of the graph.

        Raises:
            PolicyError: As `batch_us`.
        """
        return self._affine[self.places(type_keys), 0]

    def batch_overhead(self, type_keys: Sequence[TypeKey]) -> np.ndarray:
        """Returns `batch_overhead_us` relative to the overhead of an average batch.

        Args:
            type_keys: The types of a graph.

        Returns:
            ``[T] float64``: weights of the types for counting batches, scaled so that
            the mean over the batches of the measured minibatches is 1. A weight is 0
            where one more batch costs nothing; all are 1 if no batch costs anything.

        Raises:
            PolicyError: As `batch_us`.
        """
        overhead = self._affine[:, 0]
        total = float(overhead @ np.array(self.batches))
        if total == 0:
            return np.ones(len(self.places(type_keys)))
        return overhead[self.places(type_keys)] * (sum(self.batches) / total)

    def batch_weights(self, type_keys: Sequence[TypeKey]) -> np.ndarray:
        """Returns `batch_overhead`, but at least 0.01, the minimum relative cost.

        Args:
            type_keys: The types of a graph.

        Returns:
            Cost of a batch of each type; searches and training minimize the sum over
            batches. ``[T] float64``.

        Raises:
            PolicyError: As `batch_us`.
        """
        return np.maximum(self.batch_overhead(type_keys), _LEAST_WEIGHT)

    def places(self, type_keys: Sequence[TypeKey]) -> np.ndarray:
        """Finds the types of a graph among the measured types.

        Args:
            type_keys: The types of a graph.

        Returns:
            Positions in `types`, ``[T] int64``. A type that matches measured types only
            in cell and parameter path is mapped to the one of the nearest arity.

        Raises:
            PolicyError: No measured type has the cell and parameter path of a type.
        """
        return np.array([self._place(key) for key in type_keys], np.int64)

    def _place(self, key: TypeKey) -> int:
        alike = [
            (each != key, abs(each.arity - key.arity), place)
            for place, each in enumerate(self.types)
            if (each.cell, each.path) == (key.cell, key.path)
        ]
        if alike:
            return min(alike)[-1]
        measured = shown([*map(str, self.types)], 80)
        raise PolicyError(
            f"costs are those of the cells that were measured, {measured}, but"
            f" {str(key)!r} was not; run edbatch calibrate for this model"
        )

    def _batches_us(self, place: np.ndarray, count: np.ndarray) -> np.ndarray:
        table = self._table
        most, widest = table.shape[1] - 1, self.widths[-1]
        wide = np.maximum(0, -((most - count) // widest))  # chunks beyond the table
        left = count - wide * widest
        last = np.array(self.chunk_us)[:, -1]
        return table[place, left] + wide * last[place] + self.switch_us

    @cached_property
    def _table(self) -> np.ndarray:
        """Least total time of a batch's chunks, by type and nodes; [T, L + 1]."""
        chunk_us = np.array(self.chunk_us)
        widths = np.array(self.widths)
        table = np.zeros((len(self.types), 4 * self.widths[-1] + 1))
        for count in range(1, table.shape[1]):
            rest = table[:, np.maximum(0, count - widths)]  # [T, W]
            table[:, count] = (rest + chunk_us).min(axis=1)
        return table

    @cached_property
    def _affine(self) -> np.ndarray:
        """Fixed part and part per node of the time of a batch; [T, 2]."""
        count = np.arange(1, self._table.shape[1])
        times = self._table[:, count] + self.switch_us
        return np.array([fit_affine(count, each) for each in times]).reshape(-1, 2)

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the fields, without the cached tables derived from them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def save(self, path: str | PathLike[str]) -> Path:
        """Writes the costs to a file; see `edbatch.policies.save_costs`.

        Args:
            path: The file; replaced if it exists.

        Returns:
            The path.
        """
        return COSTS.save(path, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Returns the costs as JSON values."""
        rows = zip(
            self.types, self.batches, self.measured_widths, self.chunk_us, strict=True
        )
        return {
            "widths": list(self.widths),
            "switch_us": self.switch_us,
            "call_us": self.call_us,
            "record": None if self.record is None else vars(self.record),
            "types": [
                {
                    **type_entry(key),
                    "batches": batches,
                    "measured_widths": measured,
                    "chunk_us": list(chunk_us),
                }
                for key, batches, measured, chunk_us in rows
            ],
        }


def require_costs(costs: object) -> None:
    """Checks that costs are None or a `CostModel`.

    Raises:
        PolicyError: `costs` is something else.
    """
    if costs is not None and not isinstance(costs, CostModel):
        raise PolicyError(
            "costs are what load_costs read from a file of 'edbatch calibrate', but"
            f" here they are {shown(costs)}, of type {type(costs).__name__}; read the"
            " file first"
        )


def fit_affine(count: np.ndarray, times: np.ndarray) -> tuple[float, float]:
    """Fits ``fixed + per_node * count`` to times.

    Args:
        count: Numbers of nodes, 1 or more; ``[n]``.
        times: The time for each number; ``[n]``.

    Returns:
        ``fixed`` and ``per_node``, each 0 or more; see `CostModel.affine_us`.

    Example:
        >>> fit_affine(np.array([1, 2, 3]), np.array([1.0, 4.0, 9.0]))[0]
        0.0
    """
    weight = 1 / (np.maximum(times, 1e-9) * np.sqrt(count))
    ones = np.ones(len(count))
    columns = np.stack([ones, count], axis=1) * weight[:, None]
    (fixed, per_node), *_ = np.linalg.lstsq(columns, times * weight)
    if fixed >= 0 and per_node >= 0:
        return float(fixed), float(per_node)
    # Otherwise one of them is 0, and the other is fitted alone.
    k = 1 if fixed < 0 else 0
    alone = columns[:, k] @ (times * weight) / (columns[:, k] @ columns[:, k])
    return (0.0, float(alone)) if k else (float(alone), 0.0)
