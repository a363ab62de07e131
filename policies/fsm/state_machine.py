"""Finite state machines over frontiers: what training makes, files keep and plans use.

A machine maps the encoding of the frontier to the type that runs next (ED-Batch, Chen
et al., ICML 2023, section 2.4). There, a state that training never saw leads to an
arbitrary choice; here the machine falls back on a heuristic and counts it: with the
encoding `fall` on the first type of the encoded frontier, else on the greedy ratio. The
heads that the ratio needs are computed when the first such state is met, so a schedule
whose states were all seen costs O(N + E + S T) for S batches and T types, and one with
unseen states O(T (N + E)). The smoothed bound of `fall` costs as much, with a small
constant.
"""

from dataclasses import dataclass, field, fields
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from edbatch.errors import PolicyError, nearest
from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure
from edbatch.policies.compiled import without_counting
from edbatch.policies.fsm.encoding import FALL, best_two, encode, encoding_id
from edbatch.policies.fsm.training_record import TrainingRecord
from edbatch.policies.fsm.trie import NO_STATE, Trie, find, trie_of
from edbatch.policies.smooth_bound.bound import (
    advance,
    new_smoothed_bound,
    no_smoothed_bound,
)
from edbatch.policies.smooth_bound.weights import EQUAL_WEIGHTS, BoundWeights
from edbatch.schedule.frontier import (
    collect,
    compiled_frontier,
    run_type,
)
from edbatch.schedule.interrupt import keyboard_interrupts
from edbatch.schedule.policy import schedules_are_valid
from edbatch.schedule.schedule import Schedule
from edbatch.schedule.sufficient_condition import (
    HeadState,
    best_ratio,
    new_heads,
    update_heads,
)

_NO_TYPE = -1


@dataclass(frozen=True, order=True)
class MachineState:
    """What a machine does on one frontier.

    Attributes:
        frontier: The encoded frontier; positions in the machine's types.
        action: The type that runs; a position in the machine's types.
        visits: How often training chose in this state.
        value: Return that training expected of the action.
    """

    frontier: tuple[int, ...]
    action: int
    visits: int = 0
    value: float = 0.0


class Binding(NamedTuple):
    """A machine of ``P`` types in terms of a graph's ``T`` types.

    Attributes:
        type_of: The graph's type of each of the machine's types, negative where it has
            none, and then its ``U`` types that the machine does not know.
        weight: Weights of the smoothed bound, see `BoundWeights.arrays`.
        log2_p: Its power is two to this.
    """

    type_of: np.ndarray  # [P + U] int32
    weight: np.ndarray  # [T + 1] float64
    log2_p: int


@schedules_are_valid
@dataclass(frozen=True)
class StateMachine:
    """A policy that looks the frontier up in a table; see `train_policy`.

    Two machines are equal if their types, encodings, states, weights and training
    records are.
    A state whose action is not on its frontier counts as not seen in training.

    Attributes:
        types: The types that it was trained on.
        encoding: How it sees the frontier: `"base"`, `"max"`, `"sort"` or `"fall"`.
        states: Its table; kept sorted by frontier.
        training: How it was trained, if it was.
        weights: Of the smoothed bound, for `"fall"` and for search.

    Raises:
        PolicyError: The encoding is unknown, a state refers to a type by a position
            that there is not, or there are other weights than types.

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

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the machine, and not what it remembers of graphs."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "_bindings": {},
            "_latest": {},
        }

    @property
    def name(self) -> str:
        """Short name for tables, such as ``fsm-sort``."""
        return f"fsm-{self.encoding}"

    @keyboard_interrupts()
    def schedule(self, structure: GraphStructure) -> Schedule:
        """Schedules a graph.

        Args:
            structure: The graph; its types may stand in another order than ours.

        Returns:
            The schedule; its `unseen_states` counts the steps in states that are not
            in the table, if there is a table.

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
            path: The file; replaced as a whole if it exists.

        Returns:
            The path.

        Raises:
            PolicyError: The file cannot be written.
        """
        # The format is written in terms of this class.
        from edbatch.policies.files.policy_file import save_policy

        return save_policy(self, path)

    def bind(self, type_keys: tuple[TypeKey, ...]) -> Binding:
        """Finds the machine's types among those of a graph.

        A type that agrees in cell and parameters with a known one but has another
        arity or variant is allowed: frontiers with it were not seen in training.

        Args:
            type_keys: The graph's types.

        Returns:
            The machine in terms of the graph's types.

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
                f" trained on but {self.name} was not trained on"
                f" {', '.join(map(repr, strange))}; {nearest(strange[0], known)} Train"
                " a policy for this model, or use a heuristic such as 'greedy'"
            )
        place = {key: t for t, key in enumerate(type_keys)}
        bound = [place.pop(key, _NO_TYPE) for key in self.types]
        return np.array([*bound, *place.values()], np.int32)

    @cached_property
    def _table(self) -> tuple[Trie, np.ndarray]:
        """The trie of encodings and, by their numbers, the actions; [S] int32."""
        frontiers = [each.frontier for each in self.states]
        trie, number = trie_of(frontiers, len(self.types))
        action = np.full(len(number), _NO_TYPE, np.int32)
        action[number] = [each.action for each in self.states]
        return trie, action


def _name(key: TypeKey) -> str:
    return f"{key.cell}@{key.path}" if key.path else key.cell


def run_table(
    structure: GraphStructure,
    kind: int,
    binding: Binding,
    trie: Trie,
    action: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Runs a whole schedule by a table.

    Args:
        structure: The graph.
        kind: `encoding_id` of the encoding.
        binding: The graph's type of each symbol, and the weights of the smoothed bound.
        trie: The encodings of the known states.
        action: The symbol to run in each of them.

    Returns:
        ``order``, ``batch_start`` and ``batch_type`` of the `Schedule`, and the number
        of steps in unknown states.
    """
    # Few arguments, in one call: handing arrays to compiled code takes longer than a
    # small minibatch. And one function per kind: each is compiled when it is needed.
    graph = structure.node_type, structure.operand_start, structure.operand_node
    num_types = len(binding.weight) - 1
    if kind == FALL:
        return _run_by_gains(
            *graph, structure.instance_nodes, num_types, *binding, *trie, action
        )
    return _run_by_sizes(*graph, num_types, kind, binding.type_of, *trie, action)


@njit(cache=True, nogil=True)
def _run_by_gains(
    node_type,
    operand_start,
    operand_node,
    instance_nodes,
    num_types,
    type_of,
    weight,
    log2_p,
    child,
    number,
    used,
    action,
):
    state = compiled_frontier(node_type, operand_start, operand_node, num_types)
    smooth = new_smoothed_bound(state, instance_nodes, weight, log2_p)
    trie = Trie(child, number, used)
    sequence = np.empty(len(type_of) + 1, np.int32)
    batches = np.empty((len(node_type), 3), np.int32)
    num_batches, unseen = _take_best(
        state, smooth, type_of, trie, action, sequence, batches
    )
    order, start, batch_type = collect(state, batches, num_batches)
    return order, start, batch_type, unseen


@without_counting()
def _take_best(state, smooth, type_of, trie, action, sequence, batches):
    """Fills ``batches``; returns their number and that of steps in unknown states."""
    unseen = 0
    num_batches = 0
    done = 0
    while done < len(state.node_type):
        length = best_two(state, smooth, type_of, sequence)
        chosen = _known_choice(state, trie, action, type_of, sequence, length)
        if chosen < 0:
            unseen += 1
            chosen = type_of[sequence[0]]
        first, last = advance(smooth, state, chosen)
        batches[num_batches, 0] = chosen
        batches[num_batches, 1] = first
        batches[num_batches, 2] = last
        num_batches += 1
        done += last - first
    return num_batches, unseen


@njit(cache=True, nogil=True)
def _run_by_sizes(
    node_type,
    operand_start,
    operand_node,
    num_types,
    kind,
    type_of,
    child,
    number,
    used,
    action,
):
    state = compiled_frontier(node_type, operand_start, operand_node, num_types)
    trie = Trie(child, number, used)
    n = len(node_type)
    smooth = no_smoothed_bound()
    sequence = np.empty(len(type_of) + 1, np.int32)
    batches = np.empty((n, 3), np.int32)
    heads = HeadState(
        np.empty((0, 0), np.int32), np.empty(0, np.int32), np.empty(0, np.int32)
    )
    has_heads = False
    unseen = 0
    num_batches = 0
    done = 0
    while done < n:
        length = encode(kind, state, smooth, type_of, sequence)
        chosen = _known_choice(state, trie, action, type_of, sequence, length)
        if chosen < 0:
            unseen += 1
            if not has_heads:
                heads = new_heads(state)
                has_heads = True
            chosen = best_ratio(heads, state)
        first, last = run_type(state, chosen)
        if has_heads:
            update_heads(heads, state, chosen, first, last)
        batches[num_batches, 0] = chosen
        batches[num_batches, 1] = first
        batches[num_batches, 2] = last
        num_batches += 1
        done += last - first
    order, start, batch_type = collect(state, batches, num_batches)
    return order, start, batch_type, unseen


@without_counting()
def _known_choice(state, trie, action, type_of, sequence, length):
    """The type to run on the frontier encoded by a sequence, or `_NO_TYPE`."""
    found = find(trie, sequence, length)
    chosen = _NO_TYPE
    if found != NO_STATE and 0 <= action[found] < len(type_of):
        chosen = type_of[action[found]]
        # Only a damaged table names a type that is not on the frontier.
        if chosen >= 0 and state.tail[chosen] == state.head[chosen]:
            chosen = _NO_TYPE
    return chosen
