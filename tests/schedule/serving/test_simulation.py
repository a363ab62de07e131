import math
from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_oracle import Request, Server

from edbatch.envs import sample_dag_structure
from edbatch.errors import PolicyError
from edbatch.schedule.examples import chain, tree
from edbatch.schedule.serving import (
    LOOK,
    WAIT,
    Admission,
    InstanceLibrary,
    ServingConfig,
    Simulation,
)

TYPES = 3
COST = np.array([[0, 1.0, 1.5, 1.75], [0, 0.5, 2.0, 2.25], [0, 3.0, 3.0, 3.0]])


def library_of(rng, count):
    """Random graphs of the same types, one instance each."""
    sample = partial(sample_dag_structure, types=TYPES, missing=0.2)
    found = []
    while len(found) < count:
        nodes = int(rng.integers(1, 8))
        seed = int(rng.integers(1000))
        # Every graph gets the type keys of the first one.
        fixed = np.random.default_rng(seed)
        each = sample(fixed, nodes=nodes)
        if not found or each.type_keys == found[0].type_keys:
            found.append(each)
        else:
            keys = found[0].type_keys
            found.append(
                type(each)(
                    keys,
                    each.node_type,
                    each.operand_start,
                    each.operand_node,
                    each.instance_nodes,
                )
            )
    return InstanceLibrary.of(found), found


def plain(structure):
    """The type and the operands of each node."""
    start, nodes = structure.operand_start, structure.operand_node
    operands = [
        [int(u) for u in nodes[start[v] : start[v + 1]] if u >= 0]
        for v in range(structure.num_nodes)
    ]
    return structure.node_type.tolist(), operands


def draw_decision(rng, state):
    if rng.random() < 0.15:
        return LOOK if state.batches else WAIT
    return int(rng.choice(np.flatnonzero(state.waiting)))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([None, 0.0, 2.0, 7.5]),
    st.sampled_from([1, 2, 100]),
    st.sampled_from([0.0, 0.25]),
)
def test_against_a_server_in_plain_python(seed, window, most, overhead):
    rng = np.random.default_rng(seed)
    library, structures = library_of(rng, 4)
    count = int(rng.integers(1, 12))
    instance = rng.integers(4, size=count)
    arrival = np.sort(np.round(rng.exponential(2.0, count).cumsum(), 2))
    deadline = float(rng.choice([4.0, 10.0]))
    config = ServingConfig(
        COST, overhead, Admission(window, most), quantum_ms=float(rng.choice([0.3, 5]))
    )
    ours = Simulation(library, config, instance, arrival, deadline, track_heads=True)
    requests = [
        Request(n, float(a), *plain(structures[k]), deadline)
        for n, (k, a) in enumerate(zip(instance, arrival, strict=True))
    ]
    theirs = Server(requests, COST.tolist(), overhead, window, most, config.quantum_ms)
    while ours.is_running:
        state = ours.state()
        found, expected = asdict(state), theirs.state()
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, atol=1e-9, err_msg=name)
        assert ours.now_ms == pytest.approx(theirs.now)
        assert ours.integral == pytest.approx(theirs.integral())
        decision = draw_decision(rng, state)
        if decision == WAIT:
            ours.wait(), theirs.wait()
        elif decision == LOOK:
            ours.look(), theirs.look(), theirs.settle()
        else:
            rows = int(rng.choice([1, 2, 3]))
            assert ours.run(decision, rows) == theirs.run(decision, rows)
    finish = [r.finish for r in requests]
    served = ours.served()
    np.testing.assert_allclose(served.finish_ms, finish)
    assert max(finish) < math.inf
    assert ours.integral == pytest.approx(served.latency_ms.sum())
    late = sum(r.finish - r.arrival > deadline + 1e-9 for r in requests)
    at_limit = sum(abs(r.finish - r.arrival - deadline) < 1e-9 for r in requests)
    assert late <= ours.missed <= late + at_limit
    assert served.rows == sum(len(r.types) for r in requests)
    assert ours.done == count


def picture(admission, decisions, arrivals=(0.0, 0.5)):
    """Two chains a-b on a server where a batch takes 1 ms and a wave adds 0.25 ms."""
    library = InstanceLibrary.of([chain("ab")])
    config = ServingConfig(np.ones((2, 9)), 0.25, admission, quantum_ms=2.0)
    simulation = Simulation(library, config, [0] * len(arrivals), list(arrivals))
    for decision in decisions:
        assert simulation.is_running
        if decision == "wait":
            simulation.wait()
        elif decision == "look":
            simulation.look()
        else:
            simulation.run("ab".index(decision[0]), max_rows=int(decision[1:] or 8))
    assert not simulation.is_running
    return simulation.served()


@pytest.mark.parametrize(
    ("admission", "decisions", "finish", "waves"),
    [
        # Both nodes run in one wave; the second request joins at its end.
        (Admission(), ["a", "b", "a", "b"], [2.25, 4.5], 2),
        # A look lets it join, at the cost of the overhead of a wave.
        (Admission(), ["a", "look", "a", "b"], [3.5, 3.5], 2),
        # Waiting for it costs the first request half a millisecond.
        (Admission(), ["wait", "a", "b"], [2.75, 2.75], 1),
        # A request that is done is answered at the end of its wave: b runs for the
        # first alone, then a and b for the second.
        (Admission(), ["a", "look", "b1", "a", "b"], [4.5, 4.5], 2),
        (Admission(), ["a", "look", "b1", "look", "a", "b"], [2.5, 4.75], 3),
        # A window of 1 ms gathers both; a window of two requests is full at once.
        (Admission(1.0, 8), ["a", "b"], [3.25, 3.25], 1),
        (Admission(1.0, 2), ["a", "b"], [2.75, 2.75], 1),
        (Admission(0.0, 8), ["a", "b", "a", "b"], [2.25, 4.5], 2),
        # With windows, a look lets no request join.
        (Admission(0.0, 8), ["a", "look", "b", "a", "b"], [2.5, 4.75], 3),
        (Admission(None, 1), ["a", "look", "b", "a", "b"], [2.5, 4.75], 3),
    ],
)
def test_as_a_picture(admission, decisions, finish, waves):
    served = picture(admission, decisions)
    assert served.waves == waves
    assert served.finish_ms.tolist() == pytest.approx(finish)


def test_waiting_ends_after_a_quantum_when_nobody_comes():
    served = picture(Admission(), ["wait", "a", "b"], arrivals=[1.0])
    assert served.finish_ms.tolist() == [1 + 2 + 2.25]


def test_a_batch_is_no_wider_than_the_costs():
    library = InstanceLibrary.of([tree("(ab)c")])
    config = ServingConfig(np.ones((3, 3)), 0.0)
    simulation = Simulation(library, config, [0] * 5, [0.0] * 5)
    assert simulation.state().waiting.tolist() == [5, 5, 0]
    assert [simulation.run(0) for _ in range(3)] == [2, 2, 1]


def test_the_same_decisions_give_the_same_run():
    def run():
        rng = np.random.default_rng(5)
        library, _ = library_of(np.random.default_rng(1), 3)
        config = ServingConfig(COST)
        times = rng.exponential(1.0, 50).cumsum()
        simulation = Simulation(library, config, rng.integers(3, size=50), times)
        while simulation.is_running:
            simulation.run(int(simulation.state().waiting.argmax()))
        return simulation.served().finish_ms

    np.testing.assert_array_equal(run(), run())


# ---- the library ----


def test_a_library_of_minibatches_holds_their_instances():
    one, two = tree("(ab)c"), tree("((ab)cb)c")
    library = InstanceLibrary.of([one, two])
    assert library.start.tolist() == [0, 3, 8]
    assert library.instance_types.tolist() == [[1, 1, 1], [1, 2, 2]]
    np.testing.assert_allclose(library.mean_depth, [0, 0, 4 / 3])
    assert library.head_counts.tolist() == [[1, 1, 1], [1, 2, 1]]


@pytest.mark.parametrize(
    ("structures", "message"),
    [
        ([], "at least one instance but received none; give"),
        ([chain("ab"), chain("cd")], "types of one model, .* one has .* another"),
    ],
)
def test_libraries_that_cannot_be(structures, message):
    with pytest.raises(PolicyError, match=message):
        InstanceLibrary.of(structures)


# ---- errors ----


def test_at_a_deadline_of_zero_every_answer_is_late():
    library = InstanceLibrary.of([chain("ab")])
    config = ServingConfig(np.ones((2, 3)))
    simulation = Simulation(library, config, [0], [0.0], 0)
    while simulation.is_running:
        simulation.run(int(simulation.state().waiting.argmax()))
    assert simulation.missed == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0], [0.0, 1.0]), r"shapes are \(1,\) and \(2,\); give lists of equal"),
        (([], []), "one request or more"),
        (([0, 0], [1.0, 0.0]), "times of arrival ascend and are finite"),
        (([0], [math.nan]), "times of arrival ascend and are finite"),
        (([1], [0.0]), "instance 1 is out of range for a library of 1 instances"),
        (([0], [0.0], -1), "a deadline in ms is a finite number, 0 or more"),
    ],
)
def test_requests_that_cannot_be(arguments, message):
    library = InstanceLibrary.of([chain("ab")])
    with pytest.raises(PolicyError, match=message):
        Simulation(library, ServingConfig(np.ones((2, 3))), *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 1)),), r"milliseconds above zero but .* shape \(2, 1\)"),
        ((np.zeros((2, 3)),), r"milliseconds above zero but .* shape \(2, 3\)"),
        ((np.full((2, 3), np.inf),), r"finite array .* shape \(2, 3\), or another nu"),
        ((np.full((2, 3), np.nan),), r"finite array .* shape \(2, 3\), or another nu"),
        (("x",), r"finite array .* but this one has shape \(0,\)"),
        (([[1.0], [1.0, 2.0]],), r"finite array .* but this one has shape \(0,\)"),
        ((np.ones((2, 3)), -1), "overhead_ms of a simulated server is a finite number"),
        ((np.ones((2, 3)), 0.1, 5), "admission of a simulated server is an Admission"),
        (
            (np.ones((2, 3)), 0.1, Admission(), 0),
            "quantum_ms of a simulated server must be above 0",
        ),
    ],
)
def test_servers_that_cannot_be(arguments, message):
    with pytest.raises(PolicyError, match=message):
        ServingConfig(*arguments)


def test_costs_of_other_types():
    with pytest.raises(
        PolicyError, match="costs are for 3 types but the instances have 2"
    ):
        Simulation(InstanceLibrary.of([chain("ab")]), ServingConfig(COST), [0], [0.0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1,), "window_ms of an admission"), ((None, 0), "max_requests of an adm")],
)
def test_admissions_that_cannot_be(arguments, message):
    with pytest.raises(PolicyError, match=message):
        Admission(*arguments)
