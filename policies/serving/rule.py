"""The learned serving policy: scores of types, and the length of waves.

The score of a type with waiting nodes is a weighted sum of features: the number of
waiting nodes, their share of the remaining nodes, their ratio to the heads (as in the
greedy heuristic; replaced by the share if the server does not count heads), the age of
their oldest request, the waiting time of the first node, the urgency of the nearest
deadline, and the number of requests in flight.

The type with the highest score runs; at the beginning of a wave, waiting has a score,
too. A wave ends after ``2 ** (wave_bias + wave_load * load)`` batches. Numbers of nodes
and requests, ages and waiting times enter as logarithms, so equal ratios are equal
steps.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from edbatch.errors import PolicyError, shown
from edbatch.graph.node_type import TypeKey
from edbatch.policies.files.json_file import SERVING, type_entry
from edbatch.policies.serving import limits
from edbatch.policies.serving.choices import FEATURES, RULE, WAITING
from edbatch.policies.serving.deciding import Choice, check_types, decide_by
from edbatch.policies.serving.record import ServingRecord
from edbatch.schedule.serving.policy import JOIN_AT_ONCE, Admission, ServingState

_MOST = 1e6


@dataclass(frozen=True)
class ServingRule:
    """A serving policy of ``T`` types and ``F`` weights for each.

    Attributes:
        types: The types.
        weights: One tuple per type, in the order of `FEATURES`; ``[T][F]``.
        waiting: Weights of waiting and of the length of waves, in the order of
            `WAITING`.
        scale_ms: The unit of time, in milliseconds.
        admission: When requests join.
        training: Record of its training; None if it was not trained.
        max_rows: Maximum rows of a batch; None for the server's own limit.

    Raises:
        PolicyError: The lengths do not agree, or a number is out of range.

    Example:
        >>> key = TypeKey("a", "", 0)
        >>> weights = ((0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),)
        >>> rule = ServingRule((key,), weights, (-9.0, 0.0, 3.0, 0.0), 10.0)
        >>> state = ServingState(
        ...     waiting=np.array([3]),
        ...     remaining=np.array([3]),
        ...     oldest_ms=np.array([4.0]),
        ...     waited_ms=np.array([0.5]),
        ...     slack_ms=np.array([np.inf]),
        ...     in_flight=3,
        ... )
        >>> rule.decide(state)
        0
    """

    types: tuple[TypeKey, ...]
    weights: tuple[tuple[float, ...], ...]
    waiting: tuple[float, ...]
    scale_ms: float
    admission: Admission = JOIN_AT_ONCE
    training: ServingRecord | None = None
    max_rows: int | None = None

    def __post_init__(self) -> None:
        rows = [len(FEATURES)] * len(self.types)
        if (
            not self.types
            or [len(each) for each in self.weights] != rows
            or len(self.waiting) != len(WAITING)
        ):
            raise PolicyError(
                f"a serving rule has one type or more, {len(FEATURES)} weights for each"
                f" and {len(WAITING)} for waiting, but here their numbers are"
                f" {len(self.types)}, {[len(each) for each in self.weights]} and"
                f" {len(self.waiting)}; train it again"
            )
        numbers = [*self.waiting, *(w for row in self.weights for w in row)]
        for number in numbers:
            if not abs(number) <= _MOST:  # nor NaN
                raise PolicyError(
                    f"a weight is a finite number, at most {_MOST:.0e}, but one is"
                    f" {shown(number)}; train the rule again"
                )
        if not 0 < self.scale_ms <= _MOST:
            raise PolicyError(
                f"the unit of time of a serving rule is above 0, at most {_MOST:.0e}"
                f" ms, but is {shown(self.scale_ms)}; train the rule again"
            )
        limits.check(self.max_rows)

    @property
    def name(self) -> str:
        """Short name for tables."""
        return "learned"

    @property
    def needs_heads(self) -> bool:
        """Whether it uses the heads of each type."""
        return bool(self._array[:-1, FEATURES.index("ratio")].any())

    def for_types(self, type_keys: tuple[TypeKey, ...]) -> "ServingRule":
        """Returns the rule for a model's types; see `ServingPolicy`.

        A type that it was not trained on gets the weights of a type with the same cell
        and parameters and the nearest arity, otherwise the mean weights of all types.

        Args:
            type_keys: The types of the model.

        Returns:
            The policy for these types, in this order.
        """
        mean = tuple(float(w) for w in np.mean(self.weights, axis=0))
        rows = tuple(self._row(key, mean) for key in type_keys)
        return replace(self, types=tuple(type_keys), weights=rows)

    def decide(self, state: ServingState) -> int:
        """Decides what runs next; see `ServingPolicy`.

        Args:
            state: The state of the server.

        Returns:
            A type, `WAIT` or `LOOK`.
        """
        check_types(self.name, len(self.types), state)
        return decide_by(self.choice, state)

    @cached_property
    def choice(self) -> Choice:
        """The policy's arguments of `choose`, for compiled code."""
        return RULE, self._array, float(self.scale_ms), 0

    @cached_property
    def _array(self) -> np.ndarray:
        array = np.zeros((len(self.types) + 1, len(FEATURES)))
        array[:-1] = self.weights
        array[-1, : len(WAITING)] = self.waiting
        return array

    def _row(self, key: TypeKey, mean: tuple[float, ...]) -> tuple[float, ...]:
        alike = [
            (each != key, abs(each.arity - key.arity), place)
            for place, each in enumerate(self.types)
            if (each.cell, each.path) == (key.cell, key.path)
        ]
        return self.weights[min(alike)[-1]] if alike else mean

    def save(self, path: str | PathLike[str]) -> Path:
        """Writes the policy to a file, for `load_serving_policy`.

        Args:
            path: The file; replaced if it exists.

        Returns:
            The path.

        Raises:
            PolicyError: The file cannot be written.
        """
        return SERVING.save(path, self.to_json(), limits.version(self.max_rows))

    def to_json(self) -> dict[str, Any]:
        """Returns the policy as JSON values."""
        return {
            "kind": "serving",
            "form": "rule",
            "scale_ms": self.scale_ms,
            "window_ms": self.admission.window_ms,
            "max_requests": self.admission.max_requests,
            **limits.entry(self.max_rows),
            "types": [
                {**type_entry(key), **dict(zip(FEATURES, row, strict=True))}
                for key, row in zip(self.types, self.weights, strict=True)
            ],
            "waiting": dict(zip(WAITING, self.waiting, strict=True)),
            "training": None if self.training is None else self.training.to_json(),
        }
