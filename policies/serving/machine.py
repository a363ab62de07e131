"""The learned state machine for serving: a table from encoded states to decisions.

Where the table has no entry, or an entry that is not allowed, the machine follows the
heuristic that it was trained with.
"""

from collections.abc import Mapping, Sequence
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
from edbatch.policies.serving.choices import (
    AGENDA,
    DEPTHS,
    GREEDY,
    HEADER,
    LARGEST,
    MACHINE,
    OLDEST,
    READY,
    STATES,
)
from edbatch.policies.serving.deciding import (
    UNLIMITED,
    Choice,
    check_types,
    decide_by,
)
from edbatch.policies.serving.encoding import (
    ENCODINGS,
    MachineState,
    is_state,
    pack,
    renumber,
)
from edbatch.policies.serving.record import ServingRecord
from edbatch.schedule.serving.policy import JOIN_AT_ONCE, Admission, ServingState

HEURISTICS = {
    "agenda": AGENDA,
    "greedy": GREEDY,
    "largest": LARGEST,
    "oldest": OLDEST,
    "cells first come": READY,
}


@dataclass(frozen=True)
class ServingMachine:
    """A serving policy of ``T`` types and ``S`` states.

    Attributes:
        types: The types.
        encoding: One of `edbatch.policies.serving.encoding.ENCODINGS`.
        states: The decision in each state: a type, `WAIT` or `LOOK`.
        heuristic: The heuristic for all other states; a key of `HEURISTICS`.
        wave: Batches per wave of the heuristic.
        depths: Mean depth of the nodes of each type, for the agenda.
        scale_ms: The unit of time, in milliseconds.
        admission: When requests join.
        training: Record of its training; None if it was not trained.
        max_rows: Maximum rows of a batch; None for the server's own limit.

    Raises:
        PolicyError: The encoding or the heuristic is unknown, the lengths do not agree,
            or a number is out of range.

    Example:
        >>> key = TypeKey("a", "", 0)
        >>> machine = ServingMachine(
        ...     (key,), "leaders", {MachineState(2, 0, (0, 0, 0)): -1}, "largest", 8,
        ...     (1.0,), 10.0,
        ... )
        >>> state = ServingState(
        ...     waiting=np.array([3]),
        ...     remaining=np.array([3]),
        ...     oldest_ms=np.array([4.0]),
        ...     waited_ms=np.array([0.5]),
        ...     slack_ms=np.array([np.inf]),
        ...     in_flight=3,
        ... )
        >>> machine.decide(state), machine.decide(replace(state, in_flight=9))
        (-1, 0)
    """

    types: tuple[TypeKey, ...]
    encoding: str
    states: Mapping[MachineState, int]
    heuristic: str
    wave: int
    depths: tuple[float, ...]
    scale_ms: float
    admission: Admission = JOIN_AT_ONCE
    training: ServingRecord | None = None
    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS or self.heuristic not in HEURISTICS:
            raise PolicyError(
                f"a serving machine has an encoding, {', '.join(ENCODINGS)}, and a"
                f" heuristic, {', '.join(HEURISTICS)}, but these are"
                f" {shown(self.encoding)} and {shown(self.heuristic)}; train it again"
            )
        if not self.types or len(self.depths) != len(self.types) or self.wave < 1:
            raise PolicyError(
                "a serving machine has one type or more, a depth of each, and waves of"
                f" one batch or more, but here are {len(self.types)} types,"
                f" {len(self.depths)} depths and waves of {self.wave}; train it again"
            )
        if not 0 < self.scale_ms < np.inf:
            raise PolicyError(
                "the unit of time of a serving machine is a finite number of ms above"
                f" 0, but is {shown(self.scale_ms)}; train the machine again"
            )
        limits.check(self.max_rows)
        for state, decision in self.states.items():
            if not is_state(self.encoding, len(self.types), state):
                raise PolicyError(
                    f"state {state} of a serving machine is impossible for the encoding"
                    f" {self.encoding!r} of {len(self.types)} types; train the machine"
                    " again"
                )
            if not -2 <= decision < len(self.types):
                raise PolicyError(
                    f"a serving machine decides for one of its {len(self.types)} types,"
                    f" -1 (to wait) or -2 (to look), but for {state} it decides"
                    f" {decision}; train the machine again"
                )

    @property
    def name(self) -> str:
        """Short name for tables."""
        return "machine"

    @property
    def needs_heads(self) -> bool:
        """Whether it uses the heads of each type."""
        return self.encoding == "leaders" or self.heuristic == "greedy"

    def for_types(self, type_keys: tuple[TypeKey, ...]) -> "ServingMachine":
        """Returns the machine for a model's types; see `ServingPolicy`.

        States with types that the model lacks are left out. In states with types that
        the machine was not trained on, it follows its heuristic, for which the depth of
        these types is the mean of `depths`.

        Args:
            type_keys: The types of the model.

        Returns:
            The policy for these types, in this order.
        """
        keys = tuple(type_keys)
        place = {key: k for k, key in enumerate(keys)}
        moved = [place.get(key, -1) for key in self.types]
        states = {}
        for state, decision in self.states.items():
            chosen = moved[decision] if decision >= 0 else decision
            found = renumber(self.encoding, state, moved, len(keys))
            if found is not None and (chosen >= 0 or decision < 0):
                states[found] = chosen
        depth_of = dict(zip(self.types, self.depths, strict=True))
        mean = float(np.mean(self.depths))
        depths = tuple(depth_of.get(key, mean) for key in keys)
        return replace(self, types=keys, states=states, depths=depths)

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
        return MACHINE, self._table, float(self.scale_ms), 0

    @cached_property
    def _table(self) -> np.ndarray:
        table = np.zeros((STATES + len(self.states), max(3, len(self.types))))
        kind = HEURISTICS[self.heuristic]
        wave = min(self.wave, UNLIMITED)
        table[HEADER, :3] = ENCODINGS.index(self.encoding), kind, wave
        table[DEPTHS, : len(self.types)] = self.depths
        rows = sorted(
            (pack(self.encoding, each), chosen) for each, chosen in self.states.items()
        )
        if rows:
            table[STATES:, :2] = rows
        return table

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
        entries: Sequence[tuple[MachineState, int]] = sorted(self.states.items())
        return {
            "kind": "serving",
            "form": "machine",
            "scale_ms": self.scale_ms,
            "window_ms": self.admission.window_ms,
            "max_requests": self.admission.max_requests,
            **limits.entry(self.max_rows),
            "encoding": self.encoding,
            "heuristic": self.heuristic,
            "wave": self.wave,
            "types": [
                {**type_entry(key), "depth": depth}
                for key, depth in zip(self.types, self.depths, strict=True)
            ],
            "states": [
                {**each._asdict(), "sees": list(each.sees), "decides": decision}
                for each, decision in entries
            ],
            "training": None if self.training is None else self.training.to_json(),
        }
