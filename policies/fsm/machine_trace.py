"""The trace of a state machine on graphs, step by step.

A machine's table says what runs in a state, but not which state follows: that depends
on the graph. The transitions are therefore collected by running the machine. Each step
also records the choices of the agenda and greedy heuristics on the same frontier, which
shows where the machine learned something else.

Every step is run from Python, so a trace is for inspecting policies: about 0.1 ms per
batch, and O(T (N + E)) per graph for the ratios of the greedy heuristic.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edbatch.arguments import check_type
from edbatch.errors import PolicyError
from edbatch.graph.node_type import TypeKey
from edbatch.graph.structure import GraphStructure
from edbatch.graph.structure_arguments import structures_of
from edbatch.policies.fsm.encoding import encoded
from edbatch.policies.fsm.state_machine import StateMachine
from edbatch.policies.heuristics import mean_depths, smallest_mean_depth
from edbatch.policies.smooth_bound.bound import advance, start_smoothed_bound
from edbatch.schedule.frontier import start_frontier
from edbatch.schedule.sufficient_condition import best_ratio, start_heads, update_heads

END = -1


@dataclass(frozen=True, eq=False)
class MachineTrace:
    """``S`` steps of a machine through ``F`` frontiers, as it encodes them.

    Types are positions in `types`, frontiers positions in `frontiers`.

    Attributes:
        types: The machine's types, then those of the graphs that it does not know.
        frontiers: Encoded frontiers, the most visited first.
        is_known: Whether each frontier is in the machine's table.
        frontier: The frontier of each step.
        next_frontier: The frontier after each step, or `END` after a graph's last step.
        action: The type that the machine ran at each step.
        agenda: The type that the agenda heuristic would have run.
        greedy: The type that the greedy heuristic would have run.

    Example:
        >>> from edbatch.policies import trace_machine, train_policy
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> policy = train_policy([graph], [graph], trials=10)
        >>> trace = trace_machine(policy, [graph])
        >>> trace.types == graph.type_keys
        True
    """

    types: tuple[TypeKey, ...]
    frontiers: tuple[tuple[int, ...], ...]
    is_known: np.ndarray  # [F] bool
    frontier: np.ndarray  # [S] int32
    next_frontier: np.ndarray  # [S] int32
    action: np.ndarray  # [S] int32
    agenda: np.ndarray  # [S] int32
    greedy: np.ndarray  # [S] int32

    def __repr__(self) -> str:
        """Summary in one line."""
        steps, frontiers = len(self.action), len(self.frontiers)
        return f"<MachineTrace: {steps} steps through {frontiers} frontiers>"

    @property
    def visits(self) -> np.ndarray:
        """Steps on each frontier; ``[F] int64``."""
        return np.bincount(self.frontier, minlength=len(self.frontiers))

    def transitions(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Counts the steps between each pair of frontiers.

        Returns:
            Frontier, next frontier (or `END`) and number of steps, ``[K]`` each, of
            the K pairs that occur.
        """
        pairs = np.stack([self.frontier, self.next_frontier])
        (source, target), count = np.unique(pairs, axis=1, return_counts=True)
        return source, target, count


def check_machine(machine: object) -> None:
    """Checks that an object is a state machine.

    Args:
        machine: The object.

    Raises:
        PolicyError: The object is not a `StateMachine`.
    """
    check_type(
        PolicyError,
        "a policy that has states",
        machine,
        StateMachine,
        "a StateMachine, as train_policy and load_policy return it",
    )


def trace_machine(
    machine: StateMachine, structures: Sequence[GraphStructure]
) -> MachineTrace:
    """Runs a machine and records every step.

    Args:
        machine: The machine.
        structures: The graphs to run it on, such as held-out minibatches.

    Returns:
        The steps, graph by graph.

    Raises:
        PolicyError: There is no graph with nodes, the machine was not trained on the
            cells of one, or an argument has the wrong type.

    Example:
        >>> from edbatch.policies import MachineState
        >>> from edbatch.schedule.examples import tree
        >>> graph = tree("((ab)cb)c")
        >>> states = (MachineState((0, 1), 1), MachineState((0,), 0))
        >>> machine = StateMachine(graph.type_keys, "base", states)
        >>> trace = trace_machine(machine, [graph])
        >>> trace.frontiers, trace.is_known.tolist()
        (((2,), (0, 1), (0,)), [False, True, True])
        >>> [each.tolist() for each in trace.transitions()]
        [[0, 0, 1, 2], [-1, 0, 2, 0], [1, 1, 1, 1]]
    """
    check_machine(machine)
    structures = structures_of(PolicyError, "graphs of a machine's trace", structures)
    symbols = {key: symbol for symbol, key in enumerate(machine.types)}
    for structure in structures:
        for key in structure.type_keys:
            symbols.setdefault(key, len(symbols))
    graphs = [[*_steps(machine, structure, symbols)] for structure in structures]
    steps = [step for each in graphs for step in each]
    if not steps:
        raise PolicyError(
            "a machine is traced on graphs with nodes but there are none, or only empty"
            " ones; give minibatches of its model"
        )
    visits = Counter(frontier for frontier, *_ in steps)
    number = {frontier: k for k, (frontier, _) in enumerate(visits.most_common())}
    paths = [[number[frontier] for frontier, *_ in each] for each in graphs if each]
    known = {state.frontier for state in machine.states}
    action, agenda, greedy = np.array([choices for _, *choices in steps], np.int32).T
    return MachineTrace(
        types=tuple(symbols),
        frontiers=tuple(number),
        is_known=np.array([frontier in known for frontier in number]),
        frontier=np.concatenate(paths).astype(np.int32),
        next_frontier=np.array(
            [after for path in paths for after in (*path[1:], END)], np.int32
        ),
        action=action,
        agenda=agenda,
        greedy=greedy,
    )


def _steps(
    machine: StateMachine, structure: GraphStructure, symbols: dict[TypeKey, int]
) -> Iterator[tuple[tuple[int, ...], int, int, int]]:
    """Yields frontier, action and the heuristics' choices along one schedule."""
    type_of, weight, log2_p = machine.bind(structure.type_keys)
    symbol_of = [symbols[key] for key in structure.type_keys]
    state = start_frontier(structure)
    heads = start_heads(state)
    smooth = start_smoothed_bound(state, structure.instance_nodes, weight, log2_p)
    mean_depth = mean_depths(structure)
    for chosen in machine.schedule(structure).batch_type:
        # Unknown types have different symbols in each graph: map them to common ones.
        frontier = encoded(machine.encoding, state, smooth, type_of)
        yield (
            tuple(symbol_of[type_of[each]] for each in frontier),
            symbol_of[chosen],
            symbol_of[smallest_mean_depth(state, mean_depth)],
            symbol_of[best_ratio(heads, state)],
        )
        first, last = advance(smooth, state, chosen)
        update_heads(heads, state, chosen, first, last)
