from functools import partial

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import build, graphs
from schedule_oracles import Naive

from edbatch.envs import (
    INVALID_ACTION_REWARD,
    BatchingEnv,
    sample_dag_structure,
    sample_tree_structure,
)
from edbatch.errors import PlanError
from edbatch.policies import Greedy
from edbatch.schedule import lower_bound
from edbatch.schedule.examples import tree

GRAPH = tree("((ab)cb)c")  # nodes 0 a, 1 b, 2 c, 3 b, 4 c


def env_of(structure, **arguments):
    return BatchingEnv(lambda _: structure, type_keys=structure.type_keys, **arguments)


def roll_out(env, seed, episodes=3):
    """All results of seeded random actions."""
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    found = [(observation, info)]
    while episodes:
        step = env.step(env.action_space.sample(info["action_mask"]))
        found.append(step)
        info = step[-1]
        if step[2] or step[3]:
            episodes -= 1
            found.append(env.reset())
            info = found[-1][1]
    return found


def test_an_episode_as_a_picture():
    env = env_of(GRAPH, render_mode="ansi")
    observation, info = env.reset()
    #                              ready, left, ratio
    assert observation.tolist() == [[1, 1, 1], [2, 2, 1], [0, 2, 0]]
    assert info["action_mask"].tolist() == [1, 1, 0]
    assert (info["batches"], info["lower_bound"]) == (0, 4)
    assert env.render().startswith("nothing has run; 0 of 5 nodes, lower bound 4 batch")
    observation, reward, terminated, truncated, info = env.step(1)
    assert observation.tolist() == [[1, 1, 1], [0, 0, 0], [0, 2, 0]]
    assert (reward, terminated, truncated) == (-0.5, False, False)
    assert info["action_mask"].tolist() == [1, 0, 0]
    assert env.render().splitlines() == [
        "batch 1: 2 of b/0; 2 of 5 nodes, lower bound 4 batches",
        "type  frontier  remaining  ratio",
        "a/0          1          1   1.00",
        "b/0          0          0   0.00",
        "c/0          0          2   0.00",
    ]
    rewards = [env.step(action)[1] for action in (0, 2)]
    assert rewards == [-0.5, -0.5]
    observation, reward, terminated, truncated, info = env.step(2)
    assert not observation.any()
    assert (terminated, truncated, info["batches"]) == (True, False, 4)
    assert not info["action_mask"].any()


@given(graphs(max_nodes=25), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 2.0]))
def test_episodes_against_the_definition(structure, seed, alpha):
    graph = Naive(structure)
    env = env_of(structure, alpha=alpha)
    observation, info = env.reset()
    random = np.random.default_rng(seed)
    done: set[int] = set()
    for batches in range(10_000):
        frontier = graph.frontier(done)
        left = [t for v, t in enumerate(graph.types) if v not in done]
        for t in range(graph.num_types):
            ready = len(frontier.get(t, ()))
            ratio = float(graph.ratio(done, t))
            expected = np.float32([ready, left.count(t), ratio])
            assert observation[t].tolist() == expected.tolist()
            assert info["action_mask"][t] == env.action_masks()[t] == (t in frontier)
        assert observation in env.observation_space
        assert info["batches"] == batches
        assert info["lower_bound"] == lower_bound(structure)
        if not frontier:
            break
        chosen = int(random.choice(sorted(frontier)))
        ratio = float(graph.ratio(done, chosen))
        observation, reward, terminated, truncated, info = env.step(chosen)
        done |= frontier[chosen]
        assert reward == pytest.approx(-1 + alpha * ratio)
        assert terminated == (len(done) == graph.n)
        assert not truncated


def test_an_invalid_action_costs_and_changes_nothing():
    env = env_of(GRAPH, render_mode="ansi")
    before, _ = env.reset()
    observation, reward, terminated, truncated, info = env.step(2)
    assert (reward, terminated, truncated) == (INVALID_ACTION_REWARD, False, False)
    np.testing.assert_array_equal(observation, before)
    assert info["batches"] == 0
    assert env.render().startswith("c/0 is not on the frontier; nothing ran; 0 of 5")
    # It costs more than the most expensive valid action.
    assert reward < -1


def test_too_many_invalid_actions_in_a_row_truncate():
    env = env_of(GRAPH, max_invalid_actions=3)
    env.reset()
    assert [env.step(a)[3] for a in (2, 2, 0, 2, 2)] == [False] * 5
    assert env.step(2)[2:4] == (False, True)
    env.reset()
    assert [env.step(2)[3] for _ in range(3)] == [False, False, True]
    strict = env_of(GRAPH, max_invalid_actions=0)
    strict.reset()
    assert [strict.step(a)[3] for a in (0, 2)] == [False, True]
    endless = env_of(GRAPH, max_invalid_actions=None)
    endless.reset()
    assert not any(endless.step(2)[3] for _ in range(2000))


def test_after_the_end_nothing_happens():
    env = env_of(build([0], [[]], 1))
    env.reset()
    assert env.step(0)[1:4] == (-0.5, True, False)
    observation, reward, terminated, truncated, info = env.step(0)
    assert (reward, terminated, truncated, info["batches"]) == (0.0, True, False, 1)
    assert not observation.any()


def test_a_graph_without_nodes_is_over_at_once():
    env = env_of(build([], [], 2))
    _, info = env.reset()
    assert info["action_mask"].tolist() == [0, 0]
    assert env.step(0)[1:4] == (0.0, True, False)


def test_action_masks_are_boolean():
    env = env_of(GRAPH)
    env.reset()
    assert env.action_masks().dtype == np.bool_
    assert env.action_masks().tolist() == [True, True, False]


def test_a_greedy_learner_is_the_greedy_heuristic():
    env = BatchingEnv()
    rng = np.random.default_rng(0)
    for _ in range(5):
        graph = sample_tree_structure(rng)
        observation, info = env.reset(options={"graph": graph})
        actions = []
        terminated = False
        while not terminated:
            actions.append(int(observation[:, 2].argmax()))
            observation, _, terminated, _, info = env.step(actions[-1])
        assert actions == Greedy().schedule(graph).batch_type.tolist()
        assert info["batches"] == lower_bound(graph)


def test_a_seed_gives_the_same_roll_out():
    sampler = partial(sample_tree_structure, kinds=3)
    one, same, other = (roll_out(BatchingEnv(sampler), seed) for seed in (1, 1, 2))
    assert len(one) == len(same)
    for ours, theirs in zip(one, same, strict=True):
        np.testing.assert_equal(ours, theirs)
    assert len(one) != len(other) or any(
        not np.array_equal(ours[0], theirs[0])
        for ours, theirs in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vectorized(mode):
    # A fork of a process in which JAX runs threads may hang.
    options = {"context": "spawn"} if mode == "async" else {}
    envs = gymnasium.make_vec(
        "edbatch.envs:edbatch/Batching-v0",
        num_envs=2,
        vectorization_mode=mode,
        vector_kwargs=options,
    )
    single = [BatchingEnv() for _ in range(2)]
    try:
        observations, infos = envs.reset(seed=[3, 4])
        for k, env in enumerate(single):
            observation, info = env.reset(seed=3 + k)
            np.testing.assert_array_equal(observations[k], observation)
            assert infos["action_mask"][k].tolist() == info["action_mask"].tolist()
        for _ in range(4):
            actions = infos["action_mask"].argmax(axis=1)
            observations, rewards, *_, infos = envs.step(actions)
            for k, env in enumerate(single):
                observation, reward, *_, info = env.step(actions[k])
                np.testing.assert_array_equal(observations[k], observation)
                assert rewards[k] == reward
                assert infos["batches"][k] == info["batches"]
    finally:
        envs.close()


# ---- errors ----


def test_a_graph_of_other_types_is_refused():
    env = BatchingEnv()
    with pytest.raises(
        PlanError,
        match=r"one tuple of types, 3 here \(leaf/0, classify/1, compose/2\), but this"
        r" graph has 4 \(leaf/0, .*compose1/2\); make another environment",
    ):
        other = sample_tree_structure(np.random.default_rng(0), kinds=2)
        env.reset(options={"graph": other})
    # Arities are drawn for each graph, so the types of two graphs differ.
    with pytest.raises(PlanError, match=r"one tuple of types, 3 here \(cell0/"):
        env = BatchingEnv(sample_dag_structure)
        for _ in range(20):
            env.reset()


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_outside_the_space(action):
    env = env_of(GRAPH)
    env.reset()
    with pytest.raises(ValueError, match=f"from 0 to 2 but is {action}; choose one"):
        env.step(action)


@pytest.mark.parametrize("call", ["step", "render", "action_masks"])
def test_before_the_first_reset(call):
    env = env_of(GRAPH, render_mode="ansi")
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"starts with reset\(\) but"):
        getattr(env, call)(*([0] if call == "step" else []))


def test_an_unknown_render_mode():
    with pytest.raises(ValueError, match="is 'ansi' or None but is 'human'; use"):
        BatchingEnv(render_mode="human")


def test_without_a_render_mode_nothing_is_drawn():
    env = env_of(GRAPH)
    env.reset()
    assert env.render() is None


SAMPLED = sample_tree_structure(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("5", r"options of reset is a dict such as .*, but this is '5', of type str"),
        ([SAMPLED], r"options of reset is a dict such as"),
        (
            {"grpah": SAMPLED},
            "takes the option 'graph' .* but this is 'grpah'; did you m",
        ),
        (
            {3: SAMPLED},
            "takes the option 'graph' and no other but this is 3; known are",
        ),
        (
            {"graph": 3},
            "option 'graph' of reset is the structure of a graph, .* is 3, o",
        ),
        (
            {"graph": [SAMPLED]},
            "the option 'graph' of reset is the structure of a graph",
        ),
    ],
)
def test_other_options_of_reset(options, message):
    env = BatchingEnv()
    with pytest.raises(PlanError, match=message):
        env.reset(options=options)
    env.reset(options={"graph": None})
    env.reset(options={})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": 3}, "a sampler of an environment is a function .* but this is 3;"),
        ({"sampler": lambda rng: None}, "what a sampler returns is the structure of a"),
        (
            {"type_keys": 3},
            "type_keys of an environment must be a list or .* but this is 3, of",
        ),
        (
            {"type_keys": ("a",)},
            "a type of an environment is a TypeKey, but this is 'a'",
        ),
        (
            {"type_keys": ()},
            "has one type or more but type_keys is empty; leave it out",
        ),
        ({"alpha": "5"}, "alpha of an environment is a finite number, 0 or .* is '5'"),
        ({"alpha": -2}, "alpha of an environment is .*, 0 or more, but this is -2; gi"),
        (
            {"max_invalid_actions": 1.5},
            "max_invalid_actions of an .* a whole number, 0 or more, but",
        ),
        ({"max_invalid_actions": -1}, "max_invalid_actions of an .* but this is -1"),
    ],
)
def test_arguments_of_other_types(arguments, message):
    with pytest.raises(PlanError, match=message):
        BatchingEnv(**arguments)


@pytest.mark.parametrize("action", ["1", 0.5, None, object(), [0, 1], float("nan"), {}])
def test_actions_of_other_types(action):
    env = BatchingEnv()
    env.reset()
    with pytest.raises(ValueError, match="an action is a type from 0 to 2 but is"):
        env.step(action)


@pytest.mark.parametrize("action", [0, np.int64(0), np.array(0), np.array([0]), 0.0])
def test_actions_of_numpy_and_of_agents(action):
    env = BatchingEnv()
    env.reset()
    assert env.step(action)[4]["batches"] == 1
