import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from serving_states import KEYS, STATE

from edbatch.envs import sample_library, sample_tree_structure
from edbatch.errors import PolicyError
from edbatch.graph import TypeKey
from edbatch.policies.serving import (
    ServingHeuristic,
    ServingMachine,
    ServingRule,
    affine_costs,
    capacity,
    compare_serving,
    draw_trace,
    serve,
    serving_heuristics,
)
from edbatch.policies.serving.choices import (
    AGENDA,
    FEATURES,
    GREEDY,
    LARGEST,
    OLDEST,
    READY,
)
from edbatch.schedule.examples import chain
from edbatch.schedule.serving import (
    LOOK,
    WAIT,
    Admission,
    Arrivals,
    InstanceLibrary,
    ServingConfig,
    ServingPolicy,
)
from edbatch.schedule.serving.policy import check_decision


def rule(waiting=(-9.0, 0, 3, 0), **columns):
    """A rule; keyword arguments give the weights of a feature, one per type."""
    rows = [[columns.get(f, [0, 0, 0])[t] for f in FEATURES] for t in range(3)]
    weights = tuple(tuple(map(float, row)) for row in rows)
    return ServingRule(KEYS, weights, tuple(map(float, waiting)), 10.0)


@pytest.mark.parametrize(
    ("kind", "chosen"), [(LARGEST, 2), (OLDEST, 2), (READY, 0), (GREEDY, 0)]
)
def test_heuristics(kind, chosen):
    assert ServingHeuristic("h", kind, num_types=3).decide(STATE) == chosen


def test_the_agenda_goes_by_mean_depth_of_the_model_s_types():
    depth_of = {KEYS[0]: 3.0, KEYS[2]: 1.0}
    agenda = ServingHeuristic("agenda", AGENDA, depth_of=depth_of)
    assert agenda.for_types(KEYS).decide(STATE) == 2
    reordered = KEYS[::-1]
    assert agenda.for_types(reordered).decide(STATE) == 0
    # An unknown type has the average depth.
    other = TypeKey("x", "", 0)
    assert agenda.for_types((KEYS[0], KEYS[1], other)).decide(STATE) == 2
    assert agenda.for_types((other, KEYS[1], KEYS[0])).decide(STATE) == 0


@pytest.mark.parametrize("kind", [AGENDA, LARGEST, OLDEST, READY])
def test_a_wave_ends(kind):
    policy = ServingHeuristic("h", kind, wave=4, num_types=3)
    assert policy.decide(replace(STATE, batches=3)) >= 0
    assert policy.decide(replace(STATE, batches=4)) == LOOK


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        ({"bias": [1, 9, 0]}, 0),
        ({"bias": [1, 9, 2]}, 2),
        ({"width": [1, 1, 1]}, 2),
        ({"width": [-1, -1, -1]}, 0),
        ({"share": [1, 1, 1]}, 0),
        ({"age": [1, 1, 1]}, 2),
        ({"wait": [1, 1, 1]}, 0),
        ({"urgency": [1, 1, 1]}, 0),
        ({"urgency": [1, 1, 2]}, 2),
        ({"ratio": [0, 0, 4]}, 2),
        ({"ratio": [1, 9, 1]}, 0),  # 2 of 2 heads, and 5 of 20
        ({"load": [0.3, 0, 0.1], "bias": [0, 0, 0.5]}, 0),  # load is 3
        ({"load": [0.2, 0, 0.1], "bias": [0, 0, 0.5]}, 2),
    ],
)
def test_what_a_rule_goes_by(columns, chosen):
    assert rule(**columns).decide(STATE) == chosen


def test_where_heads_are_not_counted_the_share_stands_for_them():
    # 2 of 8 nodes, and 5 of 40.
    by_ratio = rule(ratio=[4, 1, 4], width=[0, 0, 0.05])
    assert by_ratio.decide(STATE) == 0
    state = replace(STATE, heads=None, remaining=np.array([40, 9, 6]))
    assert by_ratio.decide(state) == 2
    assert rule(share=[4, 1, 4]).decide(state) == 2


def test_a_rule_waits_where_that_scores_higher():
    assert rule((0.5, 0, 3, 0)).decide(STATE) == WAIT
    assert rule((0.5, -0.2, 3, 0)).decide(STATE) == 0
    assert rule((0.5, 0, 3, 0), bias=[1, 0, 0]).decide(STATE) == 0
    # Later in a wave it does not.
    assert rule((0.5, 0, 3, 0)).decide(replace(STATE, batches=1)) == 0


def test_a_rule_decides_how_long_waves_are():
    found = [rule().decide(replace(STATE, batches=b)) for b in (1, 7, 8, 9)]
    assert found == [0, 0, LOOK, LOOK]
    found = [rule((-9, 0, 0, 1)).decide(replace(STATE, batches=b)) for b in (7, 8)]
    assert found == [0, LOOK]


def test_a_rule_for_a_model_with_other_types():
    trained = rule(bias=[5, 3, 1])
    reordered = trained.for_types((KEYS[2], KEYS[0], TypeKey("new", "", 0)))
    assert [row[0] for row in reordered.weights] == [1, 5, 3]
    wide = TypeKey("a", "", 4)  # the same cell with more operands
    assert trained.for_types((wide,)).weights[0][0] == 5


def test_all_are_serving_policies():
    library = sample_library(sample_tree_structure, 2, 0)
    for each in (rule(), *serving_heuristics(library)):
        assert isinstance(each, ServingPolicy)
        assert each.for_types(library.type_keys).name == each.name


def test_a_decision_takes_less_than_20_us():
    for policy in (rule(), ServingHeuristic("largest", LARGEST, num_types=3)):
        policy.decide(STATE)
        times = []
        for _ in range(200):
            start = time.perf_counter()
            policy.decide(STATE)
            times.append(time.perf_counter() - start)
        assert np.percentile(times, 20) < 20e-6


def test_deciding_needs_no_gymnasium():
    code = (
        "import sys; from edbatch.policies.serving import load_serving_policy;"
        "from edbatch.schedule.serving import ServingState;"
        "assert 'gymnasium' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


@pytest.mark.parametrize(
    ("state", "decision", "is_right"),
    [
        (STATE, 0, True),
        (STATE, 1, False),
        (STATE, 3, False),
        (STATE, WAIT, True),
        (STATE, LOOK, False),
        (replace(STATE, batches=1), WAIT, False),
        (replace(STATE, batches=1), LOOK, True),
    ],
)
def test_decisions_are_checked(state, decision, is_right):
    if is_right:
        check_decision(rule(), state, decision)
        return
    with pytest.raises(PolicyError, match=r"here \[0, 2\], for WAIT .* 'learned' dec"):
        check_decision(rule(), state, decision)


def test_windows_run_to_their_end_in_one_wave():
    library = InstanceLibrary.of([chain("abab"), chain("ab")])
    config = ServingConfig(np.ones((2, 65)), 0.5)
    trace = draw_trace(library, Arrivals(400), 100, 0)
    policies = {each.name: each for each in serving_heuristics(library)}
    for name in ("run at once", "window 5 ms"):
        served = serve(policies[name], library, config, trace)
        # Requests that are answered together ran in one wave.
        assert served.waves == len(np.unique(served.finish_ms))
    at_once, window = (
        serve(policies[name], library, config, trace)
        for name in ("run at once", "window 10 ms")
    )
    assert window.waves < at_once.waves
    first = trace.arrival_ms[0]
    assert window.finish_ms[0] >= first + 10 > at_once.finish_ms[0]
    assert policies["window 10 ms"].admission == Admission(10, 64)


def test_greedy_needs_heads():
    greedy = ServingHeuristic("greedy", GREEDY, num_types=3)
    with pytest.raises(PolicyError, match=r"'greedy' needs the heads .* is None;"):
        greedy.decide(replace(STATE, heads=None))


def test_a_policy_for_other_types():
    with pytest.raises(PolicyError, match="is for 1 and the state has 3; use policy"):
        ServingHeuristic("largest", LARGEST, num_types=1).decide(STATE)


@pytest.mark.parametrize(
    ("policy", "which"),
    [
        (serving_heuristics(InstanceLibrary.of([chain("ab")]))[0], "2"),
        (ServingRule(KEYS[:2], ((0.0,) * 8,) * 2, (-9.0, 0, 3, 0), 10.0), "2"),
        (ServingRule(KEYS, ((0.0,) * 8,) * 3, (-9.0, 0, 3, 0), 10.0), "others"),
        (ServingMachine(KEYS[:1], "leaders", {}, "agenda", 8, (1.0,), 10.0), "1"),
    ],
)
def test_only_a_policy_for_the_types_of_a_library_serves_it(policy, which):
    library = InstanceLibrary.of([chain("xyz")])
    config = ServingConfig(affine_costs(3))
    trace = draw_trace(library, Arrivals(100), 10, 0)
    message = (
        rf"'{policy.name}' is for {which} and the library has 3; pass"
        r" policy\.for_types\(library\.type_keys\)"
    )
    with pytest.raises(PolicyError, match=message):
        serve(policy, library, config, trace)
    with pytest.raises(PolicyError, match=message):
        capacity(policy, library, config, 10)
    with pytest.raises(PolicyError, match=message):
        compare_serving([policy], library, config, [Arrivals(100)], requests=10)
    bound = policy.for_types(library.type_keys)
    assert np.isfinite(serve(bound, library, config, trace).finish_ms).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"weights": ((0.0,) * 6,) * 3}, r"8 weights for each .* 3, \[6, 6, 6\] and 4"),
        ({"waiting": (0.0,)}, "and 4 for waiting, but here their numbers"),
        ({"types": ()}, "one type or more"),
        ({"waiting": (float("nan"), 0, 0, 0)}, "a weight is a finite number"),
        ({"scale_ms": 0.0}, "the unit of time of a serving rule is above 0"),
    ],
)
def test_rules_that_cannot_be(changed, message):
    with pytest.raises(PolicyError, match=message):
        replace(rule(), **changed)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"requests": 0}, "requests is a whole number, 1 or more, but this is 0"),
        (
            {"requests": 3, "seed": -1},
            "seed is a whole number, 0 or more, but this is -1",
        ),
        (
            {"requests": 3, "seed": 0.5},
            "seed is a whole number, 0 or more, but this is 0.5",
        ),
    ],
)
def test_what_draws_requests_is_checked(given, message):
    library = InstanceLibrary.of([chain("ab")])
    with pytest.raises(PolicyError, match=message):
        draw_trace(library, None, **{"seed": 0} | given)
    policy, config = serving_heuristics(library)[0], ServingConfig(affine_costs(2))
    with pytest.raises(PolicyError, match=message):
        capacity(policy, library, config, **given)
