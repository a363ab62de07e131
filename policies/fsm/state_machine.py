"""Finite state machines over frontiers: the policies that training returns.

A machine maps the encoding of the frontier to the type that runs next (ED-Batch, Chen
et al., ICML 2023, section 2.4). In ED-Batch, a state never seen in training leads to an
arbitrary choice. Here the machine counts the step as unseen and falls back on a
heuristic: with the encoding `fall`, it runs the first type of the encoded frontier,
otherwise the type with the largest greedy ratio. The heads that the ratio needs are
computed when the first such state occurs, so a schedule whose states were all seen
costs O(N + E + S T) for S batches and T types, and one with unseen states O(T (N + E)).
The smoothed bound of `fall` also costs O(T (N + E)), with a small constant.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from edbatch.arguments import is_number, is_whole
from edbatch.errors import PolicyError, nearest, shown
from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure
from edbatch.policies.files.json_file import (
    BY_BATCHES,
    POLICIES,
    read_types,
    type_entry,
)
from edbatch.policies.fsm.encoding import encoding_id, is_possible_encoding
from edbatch.policies.fsm.machine_state import MachineState, type_labels
from edbatch.policies.fsm.state_index import StateIndex, index_sequences
from edbatch.policies.fsm.table_run import NO_TYPE, Binding, run_table
from edbatch.policies.fsm.training_record import GREEDY_ENCODING, TrainingRecord
from edbatch.policies.smooth_bound.weights import EQUAL_WEIGHTS, BoundWeights
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.policy import schedules_are_valid
from edbatch.schedule.schedule import Schedule


@schedules_are_valid
@dataclass(frozen=True)
class StateMachine:
    """A policy that looks the frontier up in a table; see `train_policy`.

    Two machines are equal if their types, encodings, states, weights and training
    records are equal. A state whose action is not on its frontier counts as unseen in
    training.

    Attributes:
        types: The types that it was trained on.
        encoding: Encoding of the frontier: `"base"`, `"max"`, `"sort"` or `"fall"`.
        states: The table, sorted by frontier.
        training: Record of its training; None if it was not trained.
        weights: Weights of the smoothed bound, for `"fall"` and for search.

    Raises:
        PolicyError: The encoding is unknown, a state refers to a type by an invalid
            position, or there are weights of types but not one per type.

    Example:
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> states = (MachineState((0, 1), 1), MachineState((0,), 0))
        >>> machine = StateMachine(graph.type_keys, "base", states)
        >>> schedule = machine.schedule(graph)
        >>> schedule.batch_type.tolist(), schedule.unseen_states
        ([1, 0, 2, 2], 2)
    """

    types: tuple[TypeKey, ...]
    encoding: str
    states: tuple[MachineState, ...] = ()
    training: TrainingRecord | None = None
    weights: BoundWeights = EQUAL_WEIGHTS
    _bindings: dict[tuple[TypeKey, ...], Binding] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _latest: dict[str, tuple[tuple[TypeKey, ...], Binding]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        encoding_id(self.encoding)
        object.__setattr__(self, "types", tuple(self.types))
        object.__setattr__(self, "states", tuple(sorted(self.states)))
        if self.weights.types and len(self.weights.types) != len(self.types):
            raise PolicyError(
                "a machine has one weight per type, or none, but there are"
                f" {len(self.weights.types)} weights and {len(self.types)} types; give"
                " as many"
            )
        for state in self.states:
            symbols = (*state.frontier, state.action)
            if min(symbols) < 0 or max(symbols) >= len(self.types):
                raise PolicyError(
                    "a state refers to types by position, from 0 to"
                    f" {len(self.types) - 1} here, but there is {state}; build states"
                    " from positions in 'types'"
                )

    def __repr__(self) -> str:
        """Summary in one line."""
        return (
            f"<StateMachine {self.encoding!r}: {len(self.states)} states of"
            f" {len(self.types)} types>"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the machine without its cached bindings to graphs."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "_bindings": {},
            "_latest": {},
        }

    @property
    def name(self) -> str:
        """Short name for tables, such as ``fsm-sort``."""
        return f"fsm-{self.encoding}"

    @property
    def otherwise(self) -> str:
        """Its fallback in states that are not in its table, as part of a sentence."""
        if self.encoding == "fall":
            return "its encoding's first type"
        return "the greedy heuristic"

    @keyboard_interrupts()
    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph.

        Args:
            structure: The graph; its types may be in another order than the machine's.

        Returns:
            The schedule; its `unseen_states` counts the steps in states that are not in
            the table, and is 0 if the table is empty.

        Raises:
            PolicyError: The graph has a cell, or parameters for it, that the machine
                was not trained on.
        """
        order, start, kind, unseen = run_table(
            structure,
            encoding_id(self.encoding),
            self.bind(structure.type_keys),
            *self._table,
        )
        return Schedule(order, start, kind, self.name, unseen if self.states else 0)

    def save(self, path: str | PathLike[str]) -> Path:
        """Writes the machine to a file that `load_policy` reads.

        Args:
            path: The file; replaced atomically if it exists.

        Returns:
            The path.

        Raises:
            PolicyError: The file cannot be written, or could not be read back: types or
                frontiers repeat, a frontier is not a possible encoding, an action is
                not on its frontier, a number is invalid, or the training record does
                not match the machine.
        """
        return POLICIES.save(path, self.to_json(), file_version(self))

    def to_json(self) -> dict[str, Any]:
        """Returns the machine as JSON values.

        Raises:
            PolicyError: The values could not be read back; see `save`.
        """
        try:
            read_types([type_entry(each) for each in self.types])
            check_states(self.encoding, self.states)
            check_record(self.encoding, self.states, self.training)
        except ValueError as error:
            raise PolicyError(
                f"a saved policy must be readable but in this one {error}; fix that,"
                " and save it again"
            ) from None
        labels = type_labels(self.types)
        return {
            "encoding": self.encoding,
            "types": [type_entry(each) for each in self.types],
            "soft_bound": self.weights.to_json(labels),
            "states": [each.to_json(labels) for each in self.states],
            "training": None if self.training is None else self.training.to_json(),
        }

    def bind(self, type_keys: tuple[TypeKey, ...]) -> Binding:
        """Maps the machine's types to those of a graph.

        A type that matches a known one in cell and parameters but has another arity or
        variant is allowed; frontiers with it count as unseen in training.

        Args:
            type_keys: The graph's types.

        Returns:
            The binding of the machine to the graph's types.

        Raises:
            PolicyError: As for `schedule`.
        """
        # Hashing many types costs as much as scheduling a small graph.
        latest = self._latest.get("binding")
        if latest is not None and latest[0] is type_keys:
            return latest[1]
        bound = self._bindings.get(type_keys)
        if bound is None:
            type_of = self._bind(type_keys)
            bound = Binding(type_of, *self.weights.arrays(type_of, len(type_keys)))
            self._bindings[type_keys] = bound
        self._latest["binding"] = type_keys, bound
        return bound

    def _bind(self, type_keys: tuple[TypeKey, ...]) -> np.ndarray:
        known = {_name(key) for key in self.types}
        strange = sorted({_name(key) for key in type_keys} - known)
        if strange:
            raise PolicyError(
                "a policy schedules graphs of the cells and parameters that it was"
                f" trained on but this one, {self.name}, was not trained on"
                f" {', '.join(map(repr, strange))}; usually it was trained for another"
                " model; train one for this model, or use a heuristic such as 'greedy';"
                f" {nearest(strange[0], known)}"
            )
        place = {key: t for t, key in enumerate(type_keys)}
        bound = [place.pop(key, NO_TYPE) for key in self.types]
        return np.array([*bound, *place.values()], np.int32)

    @cached_property
    def _table(self) -> tuple[StateIndex, np.ndarray]:
        """The index of encodings, and the action of each by number; [S] int32."""
        frontiers = [each.frontier for each in self.states]
        index, number = index_sequences(frontiers)
        action = np.full(len(number), NO_TYPE, np.int32)
        action[number] = [each.action for each in self.states]
        return index, action


def file_version(machine: StateMachine) -> int:
    """Returns the first file version that has all entries of a machine."""
    training = machine.training
    by_cost = training is not None and training.by_cost is not None
    return POLICIES.version if by_cost else BY_BATCHES


def check_record(
    encoding: str, states: Sequence[MachineState], record: TrainingRecord | None
) -> None:
    """Checks that a machine matches its training record.

    Args:
        encoding: The machine's encoding.
        states: Its states.
        record: The record of its training; None if it was not trained.

    Raises:
        ValueError: They do not match; the message is a clause that says how they
            differ.
    """
    if record is None:
        return
    if record.follows_greedy and states:
        raise ValueError(
            "there are 'states' but 'training' says that it only follows greedy"
        )
    made = record.encoding
    if made == "fall" and (record.follows_greedy or record.has_no_result):
        made = GREEDY_ENCODING
    if encoding != made:
        raise ValueError(
            f"'encoding' is {encoding!r} but by 'training' it is {shown(made)}"
        )


def check_states(encoding: str, states: Sequence[MachineState]) -> None:
    """Checks that states are possible for a trained machine.

    Args:
        encoding: The machine's encoding.
        states: Its states.

    Raises:
        ValueError: A state is impossible; the message is a clause that names it.
    """
    known: set[tuple[int, ...]] = set()
    for k, state in enumerate(states):
        frontier = tuple(state.frontier)
        if frontier in known:
            raise ValueError(f"state {k} repeats the frontier of another")
        if state.action not in frontier:
            raise ValueError(f"state {k} has an action that is not on its frontier")
        if not is_possible_encoding(encoding, frontier):
            raise ValueError(
                f"state {k} has a frontier that the encoding {encoding!r} cannot"
                " produce"
            )
        if not is_whole(state.visits) or not is_number(state.value):
            raise ValueError(
                f"'visits' of state {k} is no whole number, or 'value' no finite one"
            )
        if not 0 <= state.visits < 2**63:
            raise ValueError(f"'visits' of state {k} is negative, or beyond 64 bits")
        known.add(frontier)


def _name(key: TypeKey) -> str:
    return f"{key.cell}@{key.path}" if key.path else key.cell
