"""Weights and power of a policy's smoothed bound; `fsm/tuning.py` tunes the weights."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from edbatch.errors import PolicyError
from edbatch.policies.fsm.training_record import is_number

POWERS = (2, 4, 8, 16)


@dataclass(frozen=True)
class BoundWeights:
    """Weights of a smoothed bound; see `edbatch.policies.smooth_bound.bound`.

    Attributes:
        types: Weight of the chains of each of a policy's types; 1 for all if empty.
        path: Weight of the longest path.
        power: The p of the norm over the instances: 2, 4, 8 or 16.

    Raises:
        PolicyError: A weight is not a finite number of at least 0, or the power is not
            2, 4, 8 or 16.

    Example:
        >>> BoundWeights((1.0, 2.0), path=0.5).arrays(np.array([1, 0, 2]), 3)
        (array([2. , 1. , 1. , 0.5]), 3)
    """

    types: tuple[float, ...] = ()
    path: float = 1.0
    power: int = 8

    def __post_init__(self) -> None:
        # Equal weights are written identically: 1 as 1.0, and −0.0 as 0.0.
        types = tuple(float(weight) + 0.0 for weight in self.types)
        object.__setattr__(self, "types", types)
        object.__setattr__(self, "path", float(self.path) + 0.0)
        for weight in (*self.types, self.path):
            if not (math.isfinite(weight) and weight >= 0):
                raise PolicyError(
                    "a weight of a smoothed bound is a finite number, 0 or more, but"
                    f" one is {weight!r}; train the policy again"
                )
        if self.power not in POWERS:
            raise PolicyError(
                f"the power of a smoothed bound is one of {POWERS} but this is"
                f" {self.power!r}; leave it out for 8"
            )

    def arrays(self, type_of: np.ndarray, num_types: int) -> tuple[np.ndarray, int]:
        """Returns the weights in the form that compiled code takes.

        Args:
            type_of: The graph's type for each of the policy's types, negative where the
                graph has none, then the types that the policy does not know;
                ``[P + U]``.
            num_types: Number of the graph's types, T.

        Returns:
            Weights, ``[T + 1] float64``, 1 for unknown types; and log2 of p.
        """
        weight = np.ones(num_types + 1)
        weight[num_types] = self.path
        for t, value in zip(type_of, self.types, strict=False):
            if t >= 0:
                weight[t] = value
        return weight, self.power.bit_length() - 1

    def to_json(self, labels: list[str]) -> dict[str, Any]:
        """Returns the weights as JSON values.

        Args:
            labels: A name for each type.

        Returns:
            The values, with the types' weights by name.
        """
        types = dict(zip(labels, self.types, strict=True)) if self.types else {}
        return {"power": self.power, "path": self.path, "types": types}

    @classmethod
    def from_json(cls, values: Any, labels: list[str]) -> "BoundWeights":
        """Reads the JSON values that `to_json` returns.

        Args:
            values: JSON values.
            labels: The names of the types.

        Returns:
            The weights.

        Raises:
            ValueError: An entry is missing, unknown or out of range; the message is a
                clause that names it.
        """
        expected = {"power", "path", "types"}
        if not isinstance(values, dict) or values.keys() != expected:
            raise ValueError(
                "'soft_bound' is not an object of 'power', 'path', 'types'"
            )
        types = values["types"]
        if not isinstance(types, dict) or (types and [*types] != labels):
            raise ValueError("'types' of 'soft_bound' are not the types of the file")
        weights = [*types.values(), values["path"]]
        if not all(is_number(each) and each >= 0 for each in weights):
            raise ValueError("a weight in 'soft_bound' is not a number, 0 or more")
        if type(values["power"]) is not int or values["power"] not in POWERS:
            raise ValueError(f"'power' of 'soft_bound' is not one of {POWERS}")
        *each_type, path = (float(weight) for weight in weights)
        return cls(tuple(each_type), path, values["power"])


EQUAL_WEIGHTS = BoundWeights()
