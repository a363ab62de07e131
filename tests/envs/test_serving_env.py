import math

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from edbatch.envs import ServingEnv, sample_library, sample_tree_structure
from edbatch.errors import PlanError, PolicyError
from edbatch.policies.serving import (
    Trace,
    affine_costs,
    serve,
    serving_heuristics,
)
from edbatch.schedule.examples import chain
from edbatch.schedule.serving import (
    Admission,
    Arrivals,
    InstanceLibrary,
    ServingConfig,
)

CHAINS = InstanceLibrary.of([chain("ab")])
UNIT = ServingConfig(np.ones((2, 9)), overhead_ms=0.25)


def roll_out(env, seed):
    """All results of seeded random actions."""
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    found = [(observation, info)]
    truncated = False
    while not truncated:
        found.append(env.step(env.action_space.sample(info["action_mask"])))
        truncated, info = found[-1][3:]
    return found


@pytest.mark.parametrize("render_mode", [None, "ansi"])
def test_gymnasium_checks_it_without_a_warning(render_mode):
    env = gymnasium.make("edbatch/Serving-v0", render_mode=render_mode)
    check_env(env.unwrapped)


def test_an_episode_as_a_picture():
    env = ServingEnv(
        CHAINS, UNIT, Arrivals(100), requests=1, deadline_ms=5, render_mode="ansi"
    )
    observation, info = env.reset(seed=0)
    #  waiting, remaining, oldest, waited, slack; in flight, outside, batches
    assert observation.tolist() == [
        [1, 1, 0, 0, 5],
        [0, 1, 0, 0, 1e9],
        [1, 0, 0, 0, 0],
    ]
    assert info["action_mask"].tolist() == [1, 0, 1, 0]
    assert env.render().splitlines() == [
        f"{info['now_ms']:.2f} ms: the first request has arrived; 1 in flight, 0 of 1"
        " answered",
        "type  waiting  remaining  oldest ms",
        "a/0         1          1       0.00",
        "b/0         0          1       0.00",
    ]
    observation, reward, terminated, truncated, info = env.step(2)  # waits
    assert (reward, terminated, truncated) == (-0.5, False, False)
    assert observation[0].tolist() == [1, 1, 0.5, 0.5, 4.5]
    observation, reward, *_, info = env.step(0)
    assert reward == -1.25
    assert info["action_mask"].tolist() == [0, 1, 0, 1]
    assert observation[2].tolist() == [1, 0, 1, 0, 0]
    assert "ran 1 of a/0; 1 in flight" in env.render()
    observation, reward, *_, info = env.step(3)  # looks, which takes no time
    assert (reward, info["action_mask"].tolist()) == (0, [0, 1, 1, 0])
    _, reward, terminated, truncated, info = env.step(1)
    assert (reward, terminated, truncated) == (-1.25, False, True)
    assert (info["answered"], info["late"]) == (1, 0)
    assert not info["action_mask"].any()
    assert env.step(0)[1:4] == (0, False, True)


@pytest.mark.parametrize("window_ms", [0.0, 2.0, 50.0])
def test_rewards_pay_for_the_first_window(window_ms):
    admission = Admission(window_ms, max_requests=5)
    config = ServingConfig(np.ones((2, 9)), admission=admission)
    env = ServingEnv(CHAINS, config, Arrivals(500), requests=20)
    found = roll_out(env, 3)
    served = env._simulation.served()
    total = sum(each[1] for each in found[1:])
    assert total == pytest.approx(-served.latency_ms.sum())


def test_rewards_sum_to_minus_the_latencies():
    env = ServingEnv(requests=40, deadline_ms=3)
    found = roll_out(env, 3)
    served = env._simulation.served()
    total = sum(step[1] for step in found[1:])
    # The first reward counts from the arrival of the first request.
    assert total == pytest.approx(-served.latency_ms.sum())


def test_rewards_count_late_answers():
    env = ServingEnv(requests=40, deadline_ms=3, reward="deadline")
    found = roll_out(env, 3)
    late = int((env._simulation.served().latency_ms > 3).sum())
    assert 0 < late < 40
    assert sum(step[1] for step in found[1:]) == -late
    assert found[-1][4]["late"] == late


def test_masks_and_observations_are_those_of_the_state():
    env = ServingEnv(requests=30, arrivals=Arrivals(3000, burst=5))
    env.action_space.seed(1)
    observation, info = env.reset(seed=1)
    truncated = False
    while not truncated:
        state = env.state()
        assert observation in env.observation_space
        np.testing.assert_array_equal(env.action_masks(), info["action_mask"] == 1)
        allowed = [*(state.waiting > 0), not state.batches, bool(state.batches)]
        assert info["action_mask"].tolist() == [int(each) for each in allowed]
        np.testing.assert_array_equal(observation[:-1, 0], state.waiting)
        assert observation[-1].tolist()[:2] == [state.in_flight, state.arrived]
        action = env.action_space.sample(info["action_mask"])
        observation, _, _, truncated, info = env.step(action)


def test_a_seed_gives_the_same_roll_out():
    one, same, other = (roll_out(ServingEnv(requests=20), s) for s in (1, 1, 2))
    assert len(one) == len(same)
    for ours, theirs in zip(one, same, strict=True):
        np.testing.assert_equal(ours, theirs)
    assert not np.array_equal(one[0][0], other[0][0]) or len(one) != len(other)


@pytest.mark.parametrize("index", range(17))
def test_a_policy_in_the_environment_is_the_policy_in_compiled_code(index):
    """Also checks that all heuristics decide alike in servers and simulations."""
    library = sample_library(sample_tree_structure, 8, 0)
    policy = serving_heuristics(library)[index]
    costs = affine_costs(library.num_types, fixed_ms=0.3, max_rows=32)
    config = ServingConfig(costs, 0.1, policy.admission)
    env = ServingEnv(library, config, Arrivals(1500), requests=60)
    env.reset(seed=7)
    truncated = policy.name.startswith("greedy")  # heads are not counted here
    while not truncated:
        rows = policy.max_rows
        assert rows is None or rows >= 32
        action = env.action_of(policy.decide(env.state()))
        truncated = env.step(action)[3]
    requests = env._simulation.requests
    trace = Trace(requests.instance, requests.arrival_ms)
    served = serve(policy, library, config, trace)
    if policy.name.startswith("greedy"):
        assert np.isfinite(served.finish_ms).all()
        return
    np.testing.assert_allclose(served.finish_ms, env._simulation.served().finish_ms)


def test_an_invalid_action_costs_and_changes_nothing():
    env = ServingEnv(CHAINS, UNIT, requests=2, max_invalid_actions=2)
    before, _ = env.reset(seed=0)
    for action, ends in ((1, False), (3, True)):  # b not ready; nothing ran
        observation, reward, terminated, truncated, _ = env.step(action)
        assert (reward, terminated, truncated) == (-1000.0, False, ends)
        np.testing.assert_array_equal(observation, before)
    env.reset(seed=0)
    assert [env.step(a)[3] for a in (1, 0, 2)] == [False, False, False]


def test_of_requests_that_never_end_times_are_bounded():
    slow = ServingConfig(np.full((2, 9), 1e12))
    env = ServingEnv(CHAINS, slow, requests=5, deadline_ms=1)
    for step in roll_out(env, 0):
        assert step[0] in env.observation_space


@pytest.mark.parametrize("action", [-1, 4, "1", 0.5, None, math.nan])
def test_an_action_outside_the_space(action):
    env = ServingEnv(CHAINS, UNIT)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="an action is a number from 0 to 3 but is"):
        env.step(action)


@pytest.mark.parametrize("call", ["step", "render", "action_masks", "state"])
def test_before_the_first_reset(call):
    env = ServingEnv(render_mode="ansi")
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"starts with reset\(\) but"):
        getattr(env, call)(*([0] if call == "step" else []))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"library": 3}, "library of an environment is a InstanceLibrary, as"),
        ({"config": 3}, "config of an environment is a ServingConfig, as"),
        ({"arrivals": 3}, "arrivals of an environment is a Arrivals, as"),
        ({"requests": 0}, "requests of an environment is a whole number, 1 or more"),
        ({"reward": "fast"}, "is 'latency', or 'deadline' with a deadline_ms, but is"),
        ({"reward": "deadline"}, "but is 'deadline' with None"),
        ({"invalid_reward": "a"}, "invalid_reward of an environment is a finite"),
        ({"max_invalid_actions": 0.5}, "max_invalid_actions of an .* whole number"),
        (
            {"max_invalid_actions": -5},
            "max_invalid_actions of an .* whole number, 0 or",
        ),
    ],
)
def test_arguments_of_other_types(arguments, message):
    with pytest.raises(PlanError, match=message):
        ServingEnv(**arguments)


def test_an_unknown_render_mode():
    with pytest.raises(ValueError, match="is 'ansi' or None but is 'human'; use"):
        ServingEnv(render_mode="human")


def test_options_of_reset():
    with pytest.raises(PlanError, match="takes no options but there are "):
        ServingEnv().reset(options={"graph": 3})


def test_without_a_render_mode_nothing_is_drawn():
    env = ServingEnv()
    env.reset(seed=0)
    assert env.render() is None


@pytest.mark.parametrize("sampler", [lambda rng: 3, lambda rng: None])
def test_a_sampler_of_no_graphs_is_refused(sampler):
    with pytest.raises(PolicyError, match="number 0 of the graphs of a library is the"):
        sample_library(sampler, 2, 0)
