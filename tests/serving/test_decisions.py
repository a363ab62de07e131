"""A server makes the same decisions as the simulation, given the same history."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from edbatch.envs import (
    sample_dag_structure,
    sample_lattice_structure,
    sample_library,
    sample_tree_structure,
)
from edbatch.graph import TypeKey
from edbatch.graph.structure import invert
from edbatch.policies.serving import (
    ServingMachine,
    ServingRule,
    draw_trace,
    serving_heuristics,
)
from edbatch.policies.serving.choices import FEATURES
from edbatch.policies.serving.encoding import MachineState
from edbatch.schedule.serving import (
    JOIN_AT_ONCE,
    LOOK,
    WAIT,
    Arrivals,
    ServingConfig,
    Simulation,
)
from edbatch.serving.decisions import WaveDecider
from edbatch.serving.flight_nodes import FlightNodes, request_places

PATIENT = 1e9


class PlainServer:
    """A plain server: requests of a library whose nodes a `WaveDecider` schedules.

    The clock and the requests that have joined come from a simulation run in parallel.
    """

    def __init__(self, simulation, library):
        self.requests, self.library = simulation.requests, library
        self.simulation = simulation
        self.ran = set()  # node numbers, across all requests

    def nodes(self):
        """The nodes of requests in flight that have not run, as `FlightNodes`."""
        counts, of = self.requests.counts, self.requests
        done = set(of.ended[: counts[3]].tolist())
        flight = [r for r in range(counts[1]) if r not in done]
        key, owner, node_type, operands = [], [], [], []
        place = {}
        for r in flight:
            k = of.instance[r]
            first, last = self.library.start[k : k + 2]
            for v in range(first, last):
                number = int(of.base[r] + v - first)
                if number in self.ran:
                    continue
                place[number] = len(key)
                key.append(number)
                owner.append(flight.index(r))
                node_type.append(self.library.node_type[v])
                operands.append(
                    [
                        place[int(of.base[r] + u - first)]
                        for u in self.reads(v)
                        if int(of.base[r] + u - first) not in self.ran
                    ]
                )
        start = np.cumsum([0, *map(len, operands)]).astype(np.int32)
        flat = np.array([u for each in operands for u in each], np.int32)
        return FlightNodes(
            self.library.type_keys,
            np.array(key, np.int64),
            np.array(node_type, np.int32),
            np.array(owner, np.int32),
            invert(start, flat),
            of.arrival_ms[flight],
            of.deadline_ms[flight],
        )

    def reads(self, v):
        graph = self.library._structure
        return graph.operand_node[slice(*graph.operand_start[v : v + 2])].tolist()


class Recording:
    """A serving policy in Python that records the states it was given."""

    name, max_rows = "recording", None

    def __init__(self, policy):
        self.policy, self.seen = policy, []
        self.admission = policy.admission

    def for_types(self, type_keys):
        assert type_keys == self.policy.for_types(type_keys).types
        return self

    def decide(self, state):
        self.seen.append(state)
        return self.policy.decide(state)


class Random:
    """Decides at random, with waits and looks."""

    name, max_rows = "random", None

    def __init__(self, admission, seed):
        self.admission, self.rng = admission, np.random.default_rng(seed)

    def for_types(self, type_keys):
        return self

    def decide(self, state):
        if self.rng.random() < 0.2:
            return LOOK if state.batches else WAIT
        return int(self.rng.choice(np.flatnonzero(state.waiting)))


def random_rule(library, seed):
    rng = np.random.default_rng(seed)
    weights = abs(rng.normal(size=(library.num_types, len(FEATURES))))
    waiting = (2.5, 0.0, 2.0, 0.3)  # waits at first, and runs as requests age
    rows = tuple(map(tuple, weights.tolist()))
    return ServingRule(library.type_keys, rows, waiting, 10.0)


LIBRARIES = {
    "trees": sample_library(sample_tree_structure, 4, 0),
    "lattices": sample_library(sample_lattice_structure, 4, 1),
    "graphs": sample_library(lambda rng: sample_dag_structure(rng, nodes=12), 1, 2),
}


def policies(library):
    kinds = {each.name: each for each in serving_heuristics(library)}
    names = ("agenda, 8", "greedy", "largest, 8", "oldest, 32", "cells first come")
    found = {name: kinds[name] for name in names}
    found |= {f"rule {seed}": random_rule(library, seed) for seed in range(3)}
    return found


def replay(library, policy, compare, max_rows=40, seed=0):
    """Runs a simulation with a policy; compares each wave with a `WaveDecider`."""
    costs = np.full((library.num_types, max_rows + 1), 0.2)
    costs += 0.01 * np.arange(max_rows + 1)
    config = ServingConfig(costs, 0.1, policy.admission)
    trace = draw_trace(library, Arrivals(4000), 25, seed)
    simulation = Simulation(
        library, config, trace.instance, trace.arrival_ms, 9.0, track_heads=True
    )
    server = PlainServer(simulation, library)
    decider = WaveDecider(compare, max_rows, PATIENT)
    bound = policy.for_types(library.type_keys)
    most = max_rows if policy.max_rows is None else policy.max_rows
    waves, waits, states = 0, 0, []
    while simulation.is_running:
        state = simulation.state()
        assert state.batches == 0
        nodes = server.nodes()
        found = decider.decide(nodes, state.now_ms, state.arrived)
        batches, ends = [], []
        while simulation.is_running:
            state = simulation.state()
            if batches and state.batches == 0:
                break  # nothing was left, and the simulation ended the wave by itself
            states.append(state)
            decision = bound.decide(state)
            if decision in (WAIT, LOOK):
                break
            first = int(simulation.requests.head[decision])
            place = int(simulation.requests.type_start[decision]) + first
            rows = simulation.run(decision, most)
            batches.append((decision, rows, place))
            ends.append(simulation.now_ms)  # a later time if none is left: harmless
        if not batches:
            assert found == WAIT and decision == WAIT
            simulation.wait()
            waits += 1
            continue
        if state.batches:
            simulation.look()
        check_wave(found, batches, nodes, server)
        decider.ran_until(np.array(ends))
        waves += 1
    return waves, waits, states


def check_wave(found, batches, nodes, server):
    assert found.batch_type.tolist() == [each[0] for each in batches]
    queue = server.requests
    for k, (_, rows, place) in enumerate(batches):
        expected = [
            int(queue.base[r] + v - server.library.start[queue.instance[r]])
            for r, v in zip(
                queue.queue_request[place : place + rows],
                queue.queue_node[place : place + rows],
                strict=True,
            )
        ]
        own = found.order[found.batch_start[k] : found.batch_start[k + 1]]
        assert nodes.key[own].tolist() == expected
        server.ran |= set(expected)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("policy", policies(LIBRARIES["trees"]))
def test_compiled_decisions_are_those_of_the_simulation(name, policy):
    library = LIBRARIES[name]
    chosen = policies(library)[policy]
    waves, _, _ = replay(library, chosen, chosen)
    assert waves >= 3


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_states_are_those_of_the_simulation(name):
    library = LIBRARIES[name]
    rule = random_rule(library, 1)
    recording = Recording(rule)
    waves, _, states = replay(library, rule, recording, seed=3)
    assert waves
    assert len(states) == len(recording.seen)
    for ours, theirs in zip(recording.seen, states, strict=True):
        for field, values in asdict(theirs).items():
            np.testing.assert_allclose(
                asdict(ours)[field], values, atol=1e-9, err_msg=field
            )


@pytest.mark.parametrize("name", LIBRARIES)
def test_random_decisions_are_those_of_the_simulation(name):
    library = LIBRARIES[name]
    one, other = Random(JOIN_AT_ONCE, 5), Random(JOIN_AT_ONCE, 5)
    waves, waits, _ = replay(library, one, other)
    assert waves and waits


def test_batches_are_no_wider_than_the_policy_allows():
    library = LIBRARIES["trees"]
    narrow = replace(policies(library)["cells first come"], max_rows=3)
    replay(library, narrow, narrow)


def test_owners_are_found_by_number():
    owner = np.array([7, 7, 2, 9, 4], np.int32)
    assert request_places(owner, [2, 9, 7]).tolist() == [2, 2, 0, 1, -1]


def test_what_a_policy_knows_of_types_that_are_met_later():
    """A server meets types one by one, and binds the policy to all of them again."""
    keys = tuple(TypeKey(name, "", 1) for name in ("turn", "join"))
    states = {MachineState(1, 0, (1, 0)): WAIT, MachineState(1, 0, (1, 1)): 1}
    machine = ServingMachine(keys, "widths", states, "largest", 3, (0.0, 1.0), 10.0)
    decider = WaveDecider(machine, 8, PATIENT)
    first = TypeKey("embed", "", 0)
    decider._bind((first,))
    assert not decider.policy.states
    decider._bind((first, *keys))
    assert decider.policy.states == {
        MachineState(1, 0, (0, 1, 0)): WAIT,
        MachineState(1, 0, (0, 1, 1)): 2,
    }
