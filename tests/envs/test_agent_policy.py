from dataclasses import replace

import gymnasium
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import build, graphs

import edbatch as eb
from edbatch.envs import AgentPolicy, BatchingEnv, sample_tree_structure
from edbatch.errors import PolicyError
from edbatch.graph import TypeKey
from edbatch.models import get_workload
from edbatch.policies import Greedy, get_policy
from edbatch.schedule import Policy, check_schedule, lower_bound
from edbatch.schedule.examples import tree

pytestmark = pytest.mark.usefixtures("quick_compiles")

NEEDS = "needs sb3-contrib: pip install 'edbatch[agents]'"
GRAPH = tree("((ab)cb)c")  # types a, b and c; a and b are on the first frontier


class Ratio:
    """Follows the ratio of the sufficient condition, as the greedy heuristic does."""

    def predict(self, observation, *, action_masks, deterministic):
        assert deterministic
        assert action_masks.dtype == np.bool_
        return observation[:, 2].argmax(), None


class Random:
    """Chooses a random type of the frontier; keeps its observations and actions."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.seen = []

    def predict(self, observation, action_masks, deterministic):
        action = int(self.random.choice(np.flatnonzero(action_masks)))
        self.seen.append((observation.copy(), action_masks.copy(), action))
        # Changes that an agent makes to its copies have no effect.
        observation[:] = action_masks[:] = True
        return np.array(action), None


class Answers:
    """Gives the same answer to every observation."""

    def __init__(self, answer):
        self.answer = answer

    def predict(self, observation, action_masks=None, deterministic=False):
        return self.answer


def permuted(structure, order):
    """The same graph with its types in another order."""
    place = np.argsort(order).astype(np.int32)
    return replace(
        structure,
        type_keys=tuple(structure.type_keys[t] for t in order),
        node_type=place[structure.node_type],
    )


@given(graphs(max_nodes=25), st.integers(0, 1000))
def test_an_agent_sees_what_the_environment_shows(structure, seed):
    agent = Random(seed)
    schedule = AgentPolicy(agent, structure.type_keys).schedule(structure)
    check_schedule(schedule, structure)
    assert schedule.policy == "agent"
    assert schedule.batch_type.tolist() == [action for *_, action in agent.seen]
    env = BatchingEnv(lambda _: structure, type_keys=structure.type_keys)
    shown, info = env.reset()
    for observation, masks, action in agent.seen:
        np.testing.assert_array_equal(observation, shown)
        np.testing.assert_array_equal(masks, env.action_masks())
        shown, *_, info = env.step(action)
    assert info["batches"] == schedule.num_batches
    assert not info["action_mask"].any()


@given(graphs())
def test_an_agent_that_follows_the_ratio_is_the_greedy_heuristic(structure):
    ours = AgentPolicy(Ratio(), structure.type_keys).schedule(structure)
    greedy = Greedy().schedule(structure)
    for name in ("order", "batch_start", "batch_type"):
        found, expected = getattr(ours, name), getattr(greedy, name)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected)


@given(graphs(), st.data())
def test_types_in_another_order(structure, data):
    order = data.draw(st.permutations(range(structure.num_types)))
    agents = [Random(0), Random(0)]
    one, other = (AgentPolicy(each, structure.type_keys) for each in agents)
    there = permuted(structure, order)
    expected, found = one.schedule(structure), other.schedule(there)
    check_schedule(found, there)
    np.testing.assert_equal(agents[0].seen, agents[1].seen)
    np.testing.assert_array_equal(found.order, expected.order)
    assert [order[t] for t in found.batch_type] == expected.batch_type.tolist()


def test_types_that_only_the_environment_has():
    agent = Random(0)
    keys = (TypeKey("z", "", 3), *GRAPH.type_keys, TypeKey("c", "", 1))
    check_schedule(AgentPolicy(agent, keys).schedule(GRAPH), GRAPH)
    for observation, masks, _ in agent.seen:
        assert observation.shape == (5, 3)
        assert not observation[[0, -1]].any()
        assert not masks[[0, -1]].any()


def test_a_strange_type_without_nodes_does_no_harm():
    # Recorded graphs list every type that their model has met in any graph.
    strange = (TypeKey("z", "", 3), *GRAPH.type_keys)
    graph = replace(GRAPH, type_keys=strange, node_type=GRAPH.node_type + np.int32(1))
    schedule = AgentPolicy(Ratio(), GRAPH.type_keys).schedule(graph)
    check_schedule(schedule, graph)
    assert schedule.num_batches == Greedy().schedule(GRAPH).num_batches


def test_a_graph_without_nodes():
    graph = build([], [], 2)
    schedule = AgentPolicy(Ratio(), graph.type_keys).schedule(graph)
    check_schedule(schedule, graph)
    assert schedule.num_batches == 0


def test_it_is_a_policy():
    policy = AgentPolicy(Ratio(), GRAPH.type_keys, name="ratio")
    assert isinstance(policy, Policy)
    assert get_policy(policy) is policy
    assert policy.schedule(GRAPH).policy == policy.name == "ratio"


@pytest.fixture(scope="module")
def tree_lstm():
    """A workload, its parameters and some trees."""
    workload = get_workload("tree-lstm", vocabulary_size=20)
    params = workload.init_params(jax.random.key(0), 4)
    return workload, params, workload.sample(np.random.default_rng(0), 5)


def test_a_model_is_batched_by_an_agent(tree_lstm):
    workload, params, trees = tree_lstm
    graph = eb.batch(workload.model).bind(params).graph(trees).structure
    policy = AgentPolicy(Ratio(), graph.type_keys[::-1])
    batched = eb.batch(workload.model, policy=policy)
    assert eb.verify(batched, params, trees).instances == 5
    report = batched.plan(trees).report
    assert report.policy == "agent"
    assert report.batches == Greedy().schedule(graph).num_batches


# ---- errors ----


def test_a_strange_type_is_refused():
    policy = AgentPolicy(Ratio(), GRAPH.type_keys[:2], name="ratio")
    with pytest.raises(
        PolicyError,
        match=r"the types that its environment had, for 'ratio' a/0, b/0, but this"
        r" graph has nodes of c/0; train an agent in an environment with the type_keys",
    ):
        policy.schedule(GRAPH)


@pytest.mark.parametrize("action", [2, -1, 3, np.int64(2), np.array(2)])
def test_a_type_that_is_not_on_the_frontier_is_refused(action):
    policy = AgentPolicy(Answers((action, None)), GRAPH.type_keys)
    with pytest.raises(
        PolicyError,
        match=r"where action_masks is True, here \[0, 1\], but 'agent' chose"
        f" {int(action)}; an agent that ignores the masks does so, use one that",
    ):
        policy.schedule(GRAPH)


@pytest.mark.parametrize("answer", [0, None, (0,), (0, 1, 2), (0.5, None), ([0], None)])
def test_an_answer_that_is_no_pair_is_refused(answer):
    with pytest.raises(PolicyError, match=r"pair \(type, state\), .* that of 'agent'"):
        AgentPolicy(Answers(answer), GRAPH.type_keys).schedule(GRAPH)


def test_an_agent_without_predict_is_refused():
    with pytest.raises(PolicyError, match=r"a method predict\(.*\) but this is <obj"):
        AgentPolicy(object(), GRAPH.type_keys)


@pytest.mark.parametrize("keys", [3, "leaf", [3], None])
def test_types_that_are_none_are_refused(keys):
    with pytest.raises(PolicyError, match=r"(type_keys|each type) of an AgentPolicy"):
        AgentPolicy(Ratio(), keys)


def test_an_agent_without_masks_is_refused():
    class Unmasked:
        def predict(self, observation, state=None, deterministic=False):
            return 0, None

    with pytest.raises(PolicyError, match=r"that of Unmasked is predict\(observation,"):
        AgentPolicy(Unmasked(), GRAPH.type_keys)


def test_an_agent_for_another_number_of_types_is_refused():
    agent = Ratio()
    agent.observation_space = BatchingEnv().observation_space
    assert AgentPolicy(agent, GRAPH.type_keys).type_keys == GRAPH.type_keys
    with pytest.raises(
        PolicyError,
        match=r"have shape \(2, 3\) for 2 types but this agent takes \(3, 3",
    ):
        AgentPolicy(agent, GRAPH.type_keys[:2])


# ---- sb3-contrib ----


@pytest.mark.slow
def test_masked_ppo_learns_in_the_environment_as_it_is():
    torch = pytest.importorskip("torch", reason=NEEDS)
    sb3_contrib = pytest.importorskip("sb3_contrib", reason=NEEDS)
    torch.set_num_threads(1)
    env = gymnasium.make("edbatch/Batching-v0")  # random trees
    agent = sb3_contrib.MaskablePPO("MlpPolicy", env, n_steps=256, seed=0, device="cpu")
    policy = AgentPolicy(agent, env.unwrapped.type_keys)
    rng = np.random.default_rng(1)
    held_out = [sample_tree_structure(rng) for _ in range(5)]
    fewest = sum(map(lower_bound, held_out))

    def batches():
        schedules = [policy.schedule(each) for each in held_out]
        for schedule, graph in zip(schedules, held_out, strict=True):
            check_schedule(schedule, graph)
        return sum(each.num_batches for each in schedules)

    untrained = batches()
    agent.learn(4096)
    assert batches() <= 1.05 * fewest < untrained
