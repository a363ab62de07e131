import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import build, graphs
from schedule_oracles import Naive, batches_of

from edbatch.errors import PolicyError
from edbatch.graph import TypeKey
from edbatch.policies import (
    ENCODINGS,
    MachineState,
    StateMachine,
    trace_machine,
    train_policy,
)
from edbatch.policies.fsm.machine_trace import END
from edbatch.schedule.examples import chain, tree

TREE = tree("((ab)cb)c")  # 0 a, 1 b, 2 c(0 1), 3 b, 4 c(2 3)


def test_each_step_is_that_of_the_schedule():
    states = (MachineState((0, 1), 1), MachineState((0,), 0))
    machine = StateMachine(TREE.type_keys, "base", states)
    trace = trace_machine(machine, [TREE, TREE])
    #   ab -> b runs, a -> a runs, c -> c runs, c -> c runs; twice
    a, b, c = range(3)
    assert trace.types == TREE.type_keys
    assert trace.frontiers == ((c,), (a, b), (a,))
    assert trace.is_known.tolist() == [False, True, True]
    assert trace.frontier.tolist() == [1, 2, 0, 0] * 2
    assert trace.next_frontier.tolist() == [2, 0, 0, END] * 2
    assert trace.action.tolist() == [b, a, c, c] * 2
    assert trace.visits.tolist() == [4, 2, 2]
    # Both b nodes are ready, and all leaves are at depth 0: ties go to a.
    assert trace.agenda.tolist() == trace.greedy.tolist() == [a, a, c, c] * 2
    assert [each.tolist() for each in trace.transitions()] == [
        [0, 0, 1, 2],
        [END, 0, 2, 0],
        [2, 2, 2, 2],
    ]


def naive_choices(graph: Naive, done: set[int]) -> tuple[int, int]:
    """The choices of agenda and greedy, by their definitions."""
    depths = graph.depths()

    def mean_depth(t: int) -> float:
        of_type = [v for v in range(graph.n) if graph.types[v] == t]
        return sum(depths[v] for v in of_type) / len(of_type)

    ready = sorted(graph.frontier(done))
    return (
        min(ready, key=lambda t: (mean_depth(t), t)),
        max(ready, key=lambda t: (graph.ratio(done, t), -t)),
    )


@given(graphs(max_nodes=25, num_types=3), st.sampled_from(ENCODINGS))
def test_heuristics_are_asked_on_the_machines_own_frontiers(structure, encoding):
    # A machine with the types in reverse order, to differ from both heuristics.
    keys = tuple(reversed(structure.type_keys))
    states = [
        MachineState(frontier, frontier[-1])
        for length in (1, 2, 3)
        for frontier in itertools.permutations(range(3), length)
    ]
    machine = StateMachine(keys, encoding, tuple(states))
    if not structure.num_nodes:
        return
    trace = trace_machine(machine, [structure])
    graph = Naive(structure)
    done: set[int] = set()
    batches = batches_of(machine.schedule(structure))
    assert len(trace.action) == len(batches)
    for step, (t, nodes) in enumerate(batches):
        agenda, greedy = naive_choices(graph, done)
        # The machine numbers the types in reverse order.
        assert (trace.action[step], trace.agenda[step]) == (2 - t, 2 - agenda)
        assert trace.greedy[step] == 2 - greedy
        seen = trace.frontiers[trace.frontier[step]]
        named = {2 - symbol for symbol in seen}
        if encoding == "fall":  # names two types at most
            assert named <= {*graph.frontier(done)}
        else:
            assert named == {*graph.frontier(done)}
        done |= nodes


def test_known_states_are_those_of_the_table():
    machine = train_policy([TREE], [TREE], encoding="sort")
    trace = trace_machine(machine, [TREE])
    assert machine.schedule(TREE).unseen_states == 0
    assert trace.is_known.all()
    assert {*trace.frontiers} <= {state.frontier for state in machine.states}


def test_unknown_types_are_numbered_alike_in_all_graphs():
    leaf = TypeKey("leaf", "", 0)
    two, three, four = (TypeKey("join", "", k) for k in (2, 3, 4))
    machine = StateMachine((leaf, two), "base", (MachineState((0,), 0),))
    #   leaf, then a join that the machine does not know
    one = replace(build([0, 1], [[], [0, 0, 0]], 2), type_keys=(leaf, three))
    other = replace(build([0, 1], [[], [0] * 4], 2), type_keys=(leaf, four))
    trace = trace_machine(machine, [one, other])
    assert trace.types == (leaf, two, three, four)
    assert trace.frontiers == ((0,), (2,), (3,))
    assert trace.is_known.tolist() == [True, False, False]
    assert trace.action.tolist() == [0, 2, 0, 3]


@pytest.mark.parametrize("structures", [[], [build([], [], 1)]])
def test_nothing_to_trace(structures):
    machine = StateMachine((TypeKey("t0", "", 0),), "sort")
    with pytest.raises(PolicyError, match="graphs with nodes but there are none, or"):
        trace_machine(machine, structures)


def test_an_empty_graph_among_others_has_no_step():
    machine = StateMachine(chain("a").type_keys, "sort")
    empty = replace(build([], [], 1), type_keys=machine.types)
    trace = trace_machine(machine, [empty, chain("a"), empty])
    assert trace.next_frontier.tolist() == [END]
    assert trace.visits.dtype == np.int64


def test_a_graph_of_another_model():
    machine = StateMachine(chain("ab").type_keys, "sort")
    with pytest.raises(PolicyError, match="was not trained on 'c'"):
        trace_machine(machine, [chain("abc")])
