"""State machines for serving: their states, files and training."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_states import KEYS, STATE

from edbatch.envs import sample_lattice_structure, sample_library
from edbatch.errors import PolicyError
from edbatch.graph import TypeKey
from edbatch.policies.fsm.random_stream import new_stream
from edbatch.policies.serving import (
    Objective,
    ServingMachine,
    affine_costs,
    draw_trace,
    q_learning,
    serve,
    serving_heuristics,
    train_serving_machine,
)
from edbatch.policies.serving.encoding import (
    ENCODINGS,
    MOST_TYPES,
    MachineState,
    encode,
    is_state,
    pack,
    unpack,
)
from edbatch.policies.serving.evaluation import Task, Validation
from edbatch.policies.serving.file import parse_serving_policy
from edbatch.policies.serving.machine_training import _learning_settings, _machine
from edbatch.schedule.serving import LOOK, WAIT, Arrivals, ServingConfig
from edbatch.schedule.serving.kernels import View
from edbatch.schedule.serving.simulation import Simulation, new_view

# Load 3 and no batch yet: c is the widest and oldest type, a has the best ratio.
LEADERS = MachineState(3, 0, (2, 2, 0))


def machine(states, encoding="leaders", heuristic="largest", wave=4):
    return ServingMachine(
        KEYS, encoding, states, heuristic, wave, (3.0, 2.0, 1.0), 10.0
    )


@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from(ENCODINGS))
@settings(max_examples=60, deadline=None)
def test_a_state_is_packed_as_it_is_encoded(seed, num_types, encoding):
    kind = ENCODINGS.index(encoding)
    if num_types > MOST_TYPES[kind]:
        return
    rng = np.random.default_rng(seed)
    waiting = rng.integers(0, 400, num_types) * rng.integers(0, 2, num_types)
    waiting[rng.integers(num_types)] = 3
    ages = rng.exponential(20.0, num_types) * (waiting > 0)
    view = View(
        waiting.astype(np.int32),
        (waiting + rng.integers(0, 9, num_types)).astype(np.int32),
        ages,
        ages,
        ages,
        np.zeros(num_types, np.int32),
    )
    flight, batches = int(rng.integers(1, 500)), int(rng.integers(0, 300))
    code = encode(kind, 10.0, view, flight, batches)
    state = unpack(encoding, num_types, code)
    assert 0 <= code < 2**53
    assert pack(encoding, state) == code
    assert is_state(encoding, num_types, state)
    assert state.load == int(np.log2(1 + flight))
    if encoding == "leaders":
        assert waiting[state.sees[0]] == waiting.max()
        assert ages[state.sees[1]] == ages[waiting > 0].max()
    else:
        of_types = state.sees[encoding == "sets" :]
        assert [each > 0 for each in of_types] == (waiting > 0).tolist()


@pytest.mark.parametrize(
    ("states", "state", "decision"),
    [
        ({}, STATE, 2),
        ({LEADERS: 0}, STATE, 0),
        ({LEADERS: WAIT}, STATE, WAIT),
        ({LEADERS: LOOK}, STATE, 2),  # not allowed at the beginning of a wave
        ({LEADERS: 1}, STATE, 2),  # no node of type 1 is waiting
        ({LEADERS: 0}, replace(STATE, in_flight=9), 0),
        ({LEADERS: 0}, replace(STATE, in_flight=15), 2),
        ({LEADERS: 0}, replace(STATE, batches=1), 2),
        ({LEADERS._replace(batches=1): LOOK}, replace(STATE, batches=1), LOOK),
        ({}, replace(STATE, batches=4), LOOK),
    ],
)
def test_a_machine_decides_by_its_table_or_else_its_heuristic(states, state, decision):
    assert machine(states).decide(state) == decision


def test_a_machine_for_a_model_with_other_types():
    reordered = machine({LEADERS: 0}).for_types((KEYS[2], TypeKey("x", "", 0), KEYS[0]))
    assert reordered.states == {MachineState(3, 0, (0, 0, 2)): 2}
    assert reordered.depths == (1.0, 2.0, 3.0)
    assert machine({LEADERS: 0}).for_types(KEYS[:2]).states == {}
    widths = machine({MachineState(3, 0, (1, 0, 2)): 2}, "widths")
    assert widths.for_types(KEYS[::-1]).states == {MachineState(3, 0, (2, 0, 1)): 0}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_machine_for_a_model_with_more_types_than_it_sees(encoding):
    kind = ENCODINGS.index(encoding)
    most = MOST_TYPES[kind]
    keys = tuple(TypeKey("x", "", k) for k in range(most + 2))
    sees = {"leaders": (0, 0, 0), "widths": (1, 0, 0), "sets": (2, 1, 0, 0)}
    state = MachineState(3, 0, sees[encoding])
    for place in (0, most - 1, most, most + 1):
        moved = (*keys[:place], KEYS[0], *keys[place:])
        found = machine({state: 0}, encoding).for_types(moved)
        assert [*found.states.values()] == ([place] if place < most else [])
        assert found.for_types(KEYS).states == ({state: 0} if place < most else {})
    # The symbol for all further types is not one of the types.
    if encoding == "leaders":
        beyond = replace(
            machine({}),
            types=keys,
            depths=(1.0,) * len(keys),
            states={MachineState(3, 0, (most, 0, 0)): 0},
        )
        assert beyond.for_types(keys).states == {}


def test_a_file_holds_a_machine(tmp_path):
    own = machine({LEADERS: WAIT, LEADERS._replace(load=2): 1})
    path = own.save(tmp_path / "machine.json")
    assert parse_serving_policy(path.read_text()) == own
    assert sum('"decides"' in line for line in path.read_text().splitlines()) == 2


def test_a_file_holds_the_limit_on_rows(tmp_path):
    own = replace(machine({LEADERS: WAIT}), max_rows=16)
    path = own.save(tmp_path / "machine.json")
    assert parse_serving_policy(path.read_text()) == own
    assert json.loads(path.read_text())["version"] == 5


def test_a_file_decides_once_for_a_state(tmp_path):
    path = machine({LEADERS: WAIT}).save(tmp_path / "machine.json")
    content = json.loads(path.read_text())
    content["states"] += [content["states"][0] | {"decides": 1}]
    with pytest.raises(PolicyError, match=r"in p state 1 repeats another; train the"):
        parse_serving_policy(json.dumps(content), "p")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"encoding": "all"}, "has an encoding, leaders, widths, sets"),
        ({"heuristic": "best"}, "'leaders' and 'best'; train it again"),
        ({"depths": (1.0,)}, "3 types, 1 depths"),
        ({"scale_ms": 0.0}, "the unit of time of a serving machine"),
        ({"max_rows": 0}, "max_rows of a serving policy is a whole number, 1 or more"),
        ({"states": {LEADERS: 3}}, "one of its 3 types"),
        ({"states": {MachineState(3, 0, (3, 0, 0)): 0}}, "the encoding 'leaders' of"),
        (
            {"states": {MachineState(3, 0, (1, 0)): 0}},
            "impossible for the encoding 'leaders' of 3 types",
        ),
        ({"states": {MachineState(99, 0, (1, 0, 0)): 0}}, "the encoding 'leaders' of"),
    ],
)
def test_machines_that_cannot_be(changed, message):
    with pytest.raises(PolicyError, match=message):
        replace(machine({}), **changed)


LATTICES = sample_library(sample_lattice_structure, 12, 0)
CONFIG = ServingConfig(affine_costs(LATTICES.num_types, max_rows=64), 0.1)


def test_a_machine_without_states_serves_as_its_heuristic():
    kinds = {each.name: each for each in serving_heuristics(LATTICES)}
    trace = draw_trace(LATTICES, Arrivals(1500), 100, 1)
    for name in ("agenda", "greedy", "largest", "oldest"):
        own = ServingMachine(
            LATTICES.type_keys,
            "sets",
            {},
            name,
            8,
            tuple(LATTICES.mean_depth.tolist()),
            10.0,
        )
        ours, theirs = (
            serve(each, LATTICES, CONFIG, trace) for each in (own, kinds[f"{name}, 8"])
        )
        np.testing.assert_array_equal(ours.finish_ms, theirs.finish_ms)


def test_a_trained_machine_without_states_is_its_heuristic():
    """This includes the heuristic's limit on rows, both in training and afterwards."""
    config = ServingConfig(affine_costs(LATTICES.num_types, max_rows=128), 0.1)
    task = Task(LATTICES, config, (Arrivals(20_000),), Objective("mean"), 200)
    (ready,) = (
        each for each in serving_heuristics(LATTICES) if each.name == "cells first come"
    )
    assert ready.max_rows == 64
    own = _machine(task, ready, "leaders", 5.0, {})
    assert (own.max_rows, own.to_json()["max_rows"]) == (64, 64)
    (trace,) = task.traces(0)
    theirs = serve(ready, LATTICES, config, trace)
    unlimited = serve(replace(ready, max_rows=None), LATTICES, config, trace)
    assert unlimited.batches < theirs.batches
    ours = serve(own, LATTICES, config, trace)
    np.testing.assert_array_equal(ours.finish_ms, theirs.finish_ms)
    # An episode with an empty table and without exploration.
    lesson = _learning_settings(Validation(task), ready, 0)._replace(epsilon=0.0)
    simulation = Simulation(
        LATTICES, config, trace.instance, trace.arrival_ms, track_heads=True
    )
    q_learning.play(
        *simulation.compiled,
        new_view(LATTICES.num_types),
        q_learning.new_table(LATTICES.num_types),
        lesson,
        q_learning.new_episode(2**17),
        new_stream(0),
    )
    np.testing.assert_array_equal(simulation.served().finish_ms, theirs.finish_ms)


def trained(seed=0):
    return train_serving_machine(
        LATTICES,
        CONFIG,
        [Arrivals(2500)],
        Objective("p99"),
        episodes=30,
        requests=150,
        seed=seed,
    )


@pytest.mark.parametrize("seed", [-5, 1.5, None])
def test_seeds_that_cannot_be(seed):
    with pytest.raises(PolicyError, match=r"seed is a whole number, 0 or more, but"):
        trained(seed=seed)


def test_training_is_no_worse_than_its_heuristic_and_follows_the_seed():
    own = trained()
    record = own.training
    assert record.method == "q-learning" and record.generations == 30
    # The best heuristic for each rate, which may admit requests in windows.
    bare = replace(own, states={})
    traces = [
        draw_trace(LATTICES, Arrivals(2500), 150, 1_000_001 + k) for k in (0, 1, 2)
    ]
    objective = Objective("p99")
    ours, theirs = (
        np.mean(
            [
                np.log(objective.value(serve(each, LATTICES, CONFIG, trace)))
                for trace in traces
            ]
        )
        for each in (own, bare)
    )
    assert ours <= theirs
    assert trained().states == own.states
