"""A serving policy in the server: answers stay correct, and no request starves."""

import functools
import threading
import time
from dataclasses import replace

import jax
import numpy as np
import pytest
from asking_models import (
    embed,
    grow_tree,
    join,
    make_params,
    sample_words,
    shift_reduce,
)
from compared_answers import assert_same

import edbatch as eb
from edbatch.errors import DeadlineError, EdbatchError, PolicyError, ServerClosedError
from edbatch.graph import TypeKey
from edbatch.graph.context import jitted_cells
from edbatch.policies import Greedy
from edbatch.policies.serving import ServingHeuristic, ServingMachine, ServingRule
from edbatch.policies.serving.choices import FEATURES, GREEDY, LARGEST, OLDEST, READY
from edbatch.policies.serving.encoding import MachineState
from edbatch.schedule.serving import JOIN_AT_ONCE, LOOK, WAIT, Admission
from edbatch.serving import generation
from edbatch.serving.generation import Generation

PARAMS = make_params()


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


class Asked:
    """A policy in Python that decides by a function of the state."""

    name, max_rows = "asked", None

    def __init__(self, decide, admission=JOIN_AT_ONCE):
        self.decide, self.admission = decide, admission
        self.type_keys = ()

    def for_types(self, type_keys):
        self.type_keys = type_keys
        return self


def at_random(seed, looks=0.3):
    rng = np.random.default_rng(seed)

    def decide(state):
        if rng.random() < looks:
            return LOOK if state.batches else WAIT
        return int(rng.choice(np.flatnonzero(state.waiting)))

    return Asked(decide)


def tree(params, shape):
    """A model that reads no values: it is recorded completely before it runs."""
    if isinstance(shape, int):
        return embed(params, shape % 12)
    left, right = (tree(params, each) for each in shape)
    return join(params["join"], left, right)


def sample_trees(count, seed=0):
    rng = np.random.default_rng(seed)

    def draw(depth):
        if depth == 0 or rng.random() < 0.2:
            return int(rng.integers(12))
        return draw(depth - 1), draw(depth - 1)

    return [draw(4) for _ in range(count)]


MODELS = {
    "parser": (shift_reduce, sample_words(15)),
    "tree decoder": (grow_tree, list(range(12))),
    "trees": (tree, sample_trees(15)),
}


@functools.cache
def answers_alone(kind):
    """The unbatched answer of the model to each instance."""
    model, instances = MODELS[kind]
    with jitted_cells():
        return [model(PARAMS, each) for each in instances]


def policies():
    learned = (-3.0, 0.5, 2.0, 0.3)
    weights = (tuple(0.5 * k for k in range(len(FEATURES))),)
    key = TypeKey("turn", "", 1)
    rule = ServingRule((key,), weights, learned, 10.0)
    return {
        "largest": ServingHeuristic("largest", LARGEST, wave=2),
        "oldest": ServingHeuristic("oldest", OLDEST),
        "greedy": ServingHeuristic("greedy", GREEDY, wave=8),
        "cells first come": ServingHeuristic("cells", READY, max_rows=2),
        "run at once": ServingHeuristic("w", LARGEST, 10**6, Admission(0, 4)),
        "windows": ServingHeuristic("w", LARGEST, 10**6, Admission(5, 4)),
        "rule": rule,
        "machine": ServingMachine(
            (key,),
            "widths",
            {MachineState(1, 0, (1,)): WAIT},
            "largest",
            3,
            (0.0,),
            10.0,
        ),
        "random": at_random(0),
        "random, few looks": at_random(1, looks=0.05),
    }


@pytest.mark.parametrize("name", policies())
@pytest.mark.parametrize("kind", MODELS)
def test_answers_are_those_of_the_model(kind, name):
    model, instances = MODELS[kind]
    expected = answers_alone(kind)
    batched, policy = eb.batch(model), policies()[name]
    with eb.Server(batched, PARAMS, policy=policy, patience_ms=1e6) as server:
        futures = []
        for k, each in enumerate(instances):
            futures.append(server.submit_nowait(each))
            if k % 4 == 0:
                time.sleep(0.002)
        for future, answer in zip(futures, expected, strict=True):
            assert_same(future.result(60), answer)
        stats = server.stats()
    assert stats.answered == len(instances)
    assert stats.overruled == 0 or name == "machine"  # waits with one in flight


def test_the_policy_of_another_model(caplog):
    """Warm-up raises an error; without warm-up, one log line reports it."""
    model, instances = MODELS["tree decoder"]
    expected = answers_alone("tree decoder")[0]
    rule = policies()["rule"]
    types = TypeKey("word", "", 0), TypeKey("phrase", "", 2)
    other = replace(rule, types=types, weights=2 * rule.weights[:1])
    with eb.Server(eb.batch(model), PARAMS, policy=other) as server:
        with pytest.raises(
            PolicyError, match=r"none of .* called, .* on 'phrase/2' and"
        ):
            server.warm_up(instances[:2])
        for _ in range(2):
            found = server.submit_nowait(instances[0]).result(60)
            assert_same(found, expected)
            server.swap_params(PARAMS)
    told = [each.message for each in caplog.records if "none of the" in each.message]
    assert len(told) == 1
    for policy in (rule, policies()["largest"]):
        with eb.Server(eb.batch(model), PARAMS, policy=policy) as server:
            server.warm_up(instances[:2])


def test_a_file_is_a_policy(tmp_path):
    path = policies()["machine"].save(tmp_path / "machine.json")
    model, instances = MODELS["trees"]
    for given in (path, str(path)):
        with eb.Server(eb.batch(model), PARAMS, policy=given) as server:
            assert_same(
                server.submit_nowait(instances[0]).result(60),
                model(PARAMS, instances[0]),
            )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Greedy(), "a serving policy, or the path .* belongs to eb.batch"),
        (3, "a serving policy, or the path"),
    ],
)
def test_what_is_no_serving_policy(given, message):
    with pytest.raises(EdbatchError, match=message):
        eb.Server(eb.batch(tree), PARAMS, policy=given)


def test_a_file_that_is_not_there():
    with pytest.raises(PolicyError, match="there is no policy file"):
        eb.Server(eb.batch(tree), PARAMS, policy="nowhere.json")


def test_a_request_joins_the_batches_of_one_that_is_half_done():
    """The first runs one batch per wave, so the second catches up with it."""
    seen, arrived = [], threading.Event()
    largest = ServingHeuristic("largest", LARGEST, wave=1)

    def decide(state):
        seen.append(state)
        if sum(each.batches == 0 for each in seen) == 2 and not state.batches:
            assert arrived.wait(30)
            return WAIT
        return largest.for_types(asked.type_keys).decide(state)

    asked = Asked(decide)
    deep = ((((0, 1), 2), 3), 4)
    with eb.Server(eb.batch(tree), PARAMS, policy=asked) as server:
        first = server.submit_nowait(deep)
        while not seen:
            time.sleep(0.001)
        second = server.submit_nowait(deep)
        arrived.set()
        for each in (first, second):
            assert_same(each.result(60), tree(PARAMS, deep))
        stats = server.stats()
    assert max(state.in_flight for state in seen) == 2
    assert stats.batches == 2 + 4  # separate word batches, and shared join batches


@pytest.mark.parametrize("wish", ["waits", "picks one type"])
def test_what_a_policy_keeps_waiting_runs_all_the_same(wish):
    """One policy always waits; the other runs words only, whatever else waits."""

    def decide(state):
        words = state.waiting[0] > 0
        if wish == "waits" or not words:
            return LOOK if state.batches else WAIT
        return 0

    model, instances = MODELS["parser"]
    with eb.Server(
        eb.batch(model), PARAMS, policy=Asked(decide), patience_ms=2
    ) as server:
        futures = [server.submit_nowait(each) for each in instances]
        for future, each in zip(futures, instances, strict=True):
            assert_same(future.result(60), model(PARAMS, each))
        assert server.stats().overruled > 0


@pytest.mark.parametrize(
    ("decide", "message"),
    [
        (lambda state: 99, r"a type with waiting nodes, here \[.*'asked' decided 99"),
        (lambda state: LOOK, "'asked' decided -2"),
        (lambda state: WAIT if state.batches else 0, "after 1 batches .* decided -1"),
        (lambda state: 1 / 0, "division by zero"),
    ],
)
def test_a_wrong_decision_ends_its_requests(decide, message):
    wrong = threading.Event()
    wrong.set()
    good = ServingHeuristic("largest", LARGEST)
    policy = Asked(None)

    def either(state):
        if wrong.is_set():
            return decide(state)
        return good.for_types(policy.type_keys).decide(state)

    policy.decide = either
    with eb.Server(eb.batch(tree), PARAMS, policy=policy) as server:
        for future in [server.submit_nowait(k) for k in ((1, 2), (3, 4))]:
            with pytest.raises((PolicyError, ZeroDivisionError), match=message):
                future.result(60)
        wrong.clear()
        assert_same(server.submit_nowait((1, 2)).result(60), tree(PARAMS, (1, 2)))
        assert server.stats().failed == 2


def test_an_idle_server_does_not_wait_for_ever():
    """A table without times would decide to wait until another request comes."""
    model, instances = MODELS["tree decoder"]
    batched = eb.batch(model)
    batched(PARAMS, instances)  # makes the types known
    policy = policies()["machine"]
    with eb.Server(batched, PARAMS, policy=policy, patience_ms=1e9) as server:
        assert_same(
            server.submit_nowait(instances[0]).result(60),
            answers_alone("tree decoder")[0],
        )
        assert server.stats().overruled > 0


def test_how_often_an_idle_server_waits():
    seen = []
    waits = Asked(lambda state: seen.append(state) or WAIT)
    with eb.Server(eb.batch(tree), PARAMS, policy=waits, patience_ms=1e9) as server:
        for count in (1, 2):
            assert_same(server.submit_nowait((1, 2)).result(60), tree(PARAMS, (1, 2)))
            assert len(seen) == count * (generation._MOST_IDLE_WAITS + 1)
            assert server.stats().overruled == count


@pytest.mark.parametrize("way", ["drain", "close", "cancel", "expire"])
def test_a_policy_that_waits_does_not_keep_the_server_from_ending(way, monkeypatch):
    monkeypatch.setattr(generation, "_MOST_IDLE_WAITS", 10**9)
    waits = Asked(lambda state: LOOK if state.batches else WAIT)
    server = eb.Server(eb.batch(tree), PARAMS, policy=waits, patience_ms=1e9)
    deadline = 30 if way == "expire" else None
    future = server.submit_nowait((1, 2), deadline_ms=deadline)
    while not server.stats().in_flight and not future.done():
        time.sleep(0.001)
    if way == "drain":
        assert server.drain(60)
        assert_same(future.result(0), tree(PARAMS, (1, 2)))
        return
    if way == "expire":
        with pytest.raises(DeadlineError):
            future.result(60)
    if way == "cancel":
        future.cancel()
        until = time.monotonic() + 60
        while server.stats().in_flight and time.monotonic() < until:
            time.sleep(0.001)
        assert server.stats().cancelled == 1
    server.close()
    if way == "close":
        with pytest.raises(ServerClosedError):
            future.result(0)


def test_windows_gather_requests():
    """Requests of a window run together, and none joins until they are done."""
    seen = []

    def decide(state):
        seen.append(state)
        return int(state.waiting.argmax())

    policy = Asked(decide, Admission(200, 3))
    with eb.Server(eb.batch(tree), PARAMS, policy=policy) as server:
        futures = [server.submit_nowait((k, k + 1)) for k in range(7)]
        for k, future in enumerate(futures[:6]):
            assert_same(future.result(60), tree(PARAMS, (k, k + 1)))
        # The seventh waits until its window ends or the server is drained.
    assert_same(futures[6].result(0), tree(PARAMS, (6, 7)))
    assert {state.in_flight for state in seen} == {3, 1}
    assert len(seen) == 3 * 2


def test_the_policy_knows_age_deadline_and_who_waits_outside():
    seen = []

    def decide(state):
        seen.append(state)
        return int(state.waiting.argmax())

    policy = Asked(decide, Admission(max_requests=2))
    with eb.Server(eb.batch(tree), PARAMS, policy=policy) as server:
        hold = server._queue.changed
        with hold:
            futures = [
                server.submit_nowait((1, 2), deadline_ms=60_000) for _ in range(5)
            ]
        for each in futures:
            each.result(60)
    assert [s.in_flight for s in seen] == [2, 2, 2, 2, 1, 1]
    assert [s.arrived for s in seen] == [3, 3, 1, 1, 0, 0]
    assert [s.remaining.sum() for s in seen] == [6, 2, 6, 2, 3, 1]
    for state in seen:
        here = state.waiting > 0
        assert (state.oldest_ms[here] > 0).all() and (state.slack_ms[here] < 6e4).all()
        assert np.isinf(state.slack_ms[~here]).all()
        # Age and remaining time add up to the deadline of 60 s.
        np.testing.assert_allclose(
            state.oldest_ms[here].max() + state.slack_ms[here].min(), 6e4, atol=50
        )


def test_parameters_are_swapped_under_a_policy():
    other = jax.tree.map(lambda x: x * 0.5, PARAMS)
    model, instances = MODELS["parser"]
    policy = at_random(3)
    with eb.Server(eb.batch(model), PARAMS, policy=policy) as server:
        first = [server.submit_nowait(each) for each in instances]
        first[0].result(60)
        server.swap_params(other)
        second = [server.submit_nowait(each) for each in instances]
        for futures, allowed in ((first, (PARAMS, other)), (second, (other,))):
            for future, each in zip(futures, instances, strict=True):
                found = future.result(60)
                answers = [model(params, each) for params in allowed]
                assert any(_alike(found, answer) for answer in answers)


def _alike(found, answer):
    try:
        assert_same(found, answer)
    except AssertionError:
        return False
    return True


def test_warm_up_runs_what_the_policy_decides():
    model, instances = MODELS["trees"]
    policy = replace(policies()["largest"], max_rows=3)
    with eb.Server(eb.batch(model), PARAMS, policy=policy) as server:
        server.warm_up(instances)
        assert server.stats().waves == 0
        futures = [server.submit_nowait(each) for each in instances]
        for future, each in zip(futures, instances, strict=True):
            assert_same(future.result(60), model(PARAMS, each))


@pytest.mark.parametrize("name", policies())
@pytest.mark.parametrize("kind", ["parser", "tree decoder"])
def test_two_parts_under_a_policy(kind, name, monkeypatch):
    """While one part runs on the device, the policy decides for the other."""
    model, instances = MODELS[kind]
    expected = answers_alone(kind)
    monkeypatch.setattr(generation, "_TWO_PARTS", 4)
    both, launch = [], Generation._launch

    def counted(self, *args):
        has_launched = launch(self, *args)
        both.append(len(self._launched) == 2)
        return has_launched

    monkeypatch.setattr(Generation, "_launch", counted)
    with eb.Server(eb.batch(model), PARAMS, policy=policies()[name]) as server:
        with server._queue.changed:  # all requests join before the first wave
            futures = [server.submit_nowait(each) for each in instances]
        for future, each in zip(futures, expected, strict=True):
            assert_same(future.result(60), each)
    assert any(both) or name in ("run at once", "windows")  # these admit four at once
