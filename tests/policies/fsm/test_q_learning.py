import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import build, graphs, long_chain

from edbatch.envs import BatchingEnv
from edbatch.policies.fsm.encoding import ENCODINGS, encoded, encoding_id
from edbatch.policies.fsm.q_learning import (
    Episode,
    Rules,
    best_action,
    best_actions,
    learn,
    new_table,
    run_episode,
)
from edbatch.policies.fsm.random_stream import new_stream
from edbatch.policies.fsm.trie import sequences
from edbatch.policies.smooth_bound.bound import advance, start_smoothed_bound
from edbatch.policies.smooth_bound.remaining import chains_below
from edbatch.schedule import lower_bound, start_frontier


def episode_of(structure, encoding="sort", epsilon=0.5, seed=0, table=None, alpha=0.5):
    start, consumers, _ = structure.consumers
    table, episode, steps = run_episode(
        new_table(structure.num_types) if table is None else table,
        start_frontier(structure),
        structure.instance_nodes,
        chains_below(structure.node_type, start, consumers, structure.num_types),
        Rules(
            kind=encoding_id(encoding),
            weight=np.ones(structure.num_types + 1),
            log2_p=3,
            alpha=alpha,
            epsilon=epsilon,
            n_step=4,
            learning_rate=0.05,
            cost=np.ones(structure.num_types),
        ),
        new_stream(seed),
    )
    return table, Episode(*(each[:steps] for each in episode))


def states_of(table):
    start, flat = sequences(table.trie)
    return [each.tolist() for each in np.split(flat, start[1:-1])]


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(graphs(max_nodes=30), st.integers(0, 2**64 - 1))
def test_an_episode_is_one_of_the_environment(encoding, structure, seed):
    if not structure.num_nodes:
        return
    alpha = 0.7
    table, episode = episode_of(structure, encoding, seed=seed, alpha=alpha)
    states = states_of(table)
    env = BatchingEnv(lambda _: structure, type_keys=structure.type_keys, alpha=alpha)
    observation, info = env.reset(seed=0)
    mirror = start_frontier(structure)
    ones = np.ones(structure.num_types + 1)
    smooth = start_smoothed_bound(mirror, structure.instance_nodes, ones, 3)
    terminated = False
    for number, action, reward in zip(*episode[:3], strict=True):
        assert not terminated
        sequence = states[number]
        assert encoded(encoding, mirror, smooth) == sequence
        ready = np.flatnonzero(info["action_mask"]).tolist()
        if encoding == "fall":
            assert len(sequence) == min(2, len(ready)) and {*sequence} <= {*ready}
            assert action in sequence
        else:
            assert ready == sorted({*sequence})
        assert np.array_equal(observation[:, 0] > 0, env.action_masks())
        observation, env_reward, terminated, truncated, info = env.step(action)
        advance(smooth, mirror, action)
        assert env_reward == reward
        assert not truncated
    assert terminated
    assert info["batches"] == len(episode.action)
    assert info["batches"] - episode.gain.sum() == info["batches"] - lower_bound(
        structure
    )


@given(graphs(max_nodes=20), st.integers(1, 30), st.sampled_from([0.05, 0.5, 1.0]))
def test_learning_is_that_of_the_definition(structure, n_step, rate):
    table = new_table(structure.num_types)
    value: dict[tuple[int, int], float] = {}
    visits: dict[tuple[int, int], int] = {}
    for seed in range(12):
        table, episode = episode_of(structure, table=table, seed=seed)
        steps = len(episode.action)
        learn(table, episode, steps, n_step, rate)
        paid = (episode.reward + episode.gain).tolist()
        for s in reversed(range(steps)):
            end = min(s + n_step, steps)
            target = sum(paid[s:end])
            if end < steps:
                there = episode.state[end]
                tried = {a: n for (state, a), n in visits.items() if state == there}
                enough = min(8, max(tried.values()))
                target += max(value[there, a] for a in tried if tried[a] >= enough)
            key = int(episode.state[s]), int(episode.action[s])
            visits[key] = visits.get(key, 0) + 1
            share = max(rate, 1 / visits[key])
            old = value.get(key, 0.0)
            value[key] = old + share * (target - old)
    for (state, action), q in value.items():
        assert table.value[state, action] == pytest.approx(q)
        assert table.visits[state, action] == visits[state, action]
    assert table.visits.sum() == sum(visits.values())


def test_without_exploration_the_best_tried_action_is_taken():
    structure = build([0, 1, 2], [[], [], []], 3)
    table, episode = episode_of(structure, "base", epsilon=0.0)
    # In states without tried actions the greedy heuristic chooses.
    assert episode.action.tolist() == [0, 1, 2]
    table.visits[episode.state[0], 1:] = 1
    table.value[episode.state[0]] = [9.0, -2.0, -1.0]  # 9 was never tried
    assert best_action(table, episode.state[0]) == 2
    _, again = episode_of(structure, "base", epsilon=0.0, table=table)
    assert again.action.tolist() == [2, 0, 1]


def test_actions_that_were_tried_seldom_do_not_compete_with_others():
    structure = build([0, 1, 2], [[], [], []], 3)
    table, episode = episode_of(structure, "base", epsilon=0.0)
    start = episode.state[0]
    table.value[start] = [-3.0, -2.0, -1.0]
    for visits, best in [
        ([100, 0, 0], 0),
        ([100, 8, 7], 1),
        ([100, 8, 8], 2),
        ([5, 4, 4], 0),
        ([5, 5, 4], 1),
        ([1, 1, 1], 2),
        ([0, 0, 1], 2),
    ]:
        table.visits[start] = visits
        assert best_action(table, start) == best
    table.visits[start] = 0
    assert best_action(table, start) < 0


def test_fall_begins_with_the_type_of_largest_fall():
    # Types 0 and 1 are ready. Only type 1 has all its nodes ready, so only its batch
    # lowers the bound.
    structure = build([0, 1, 0, 2], [[], [], [1], [2]], 3)
    _, episode = episode_of(structure, "fall", epsilon=0.0)
    assert episode.action.tolist() == [1, 0, 2]


def test_random_actions_with_fall_are_the_best_and_the_runner_up():
    structure = build([0, 1, 2], [[], [], []], 3)
    firsts = [
        int(episode_of(structure, "fall", epsilon=1.0, seed=seed)[1].action[0])
        for seed in range(200)
    ]
    assert [firsts.count(t) > 60 for t in range(3)] == [True, True, False]


def test_random_actions_are_all_those_of_the_frontier():
    structure = build([0, 2, 3], [[], [], []], 4)
    firsts = [
        int(episode_of(structure, epsilon=1.0, seed=seed)[1].action[0])
        for seed in range(300)
    ]
    assert [firsts.count(t) > 70 for t in range(4)] == [True, False, True, True]


def test_a_seed_gives_the_same_episode():
    structure = build([k % 7 for k in range(40)], [[]] * 40, 7)
    one, same, other = (
        episode_of(structure, epsilon=1.0, seed=seed)[1].action for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_tables_grow():
    n = 200
    structure = build(range(n), [[]] * n, n)
    table, episode = episode_of(structure, "base")
    assert len(states_of(table)) == n
    learn(table, episode, n, 4, 0.1)
    assert (table.visits.sum(axis=1)[:n] == 1).all()
    actions = best_actions(table)
    assert actions[episode.state].tolist() == episode.action.tolist()


def test_a_deep_chain():
    table, episode = episode_of(long_chain(100_000))
    assert len(episode.action) == 100_000
    learn(table, episode, 100_000, 4, 0.05)
    assert (episode.gain == 1).all()
    assert len(states_of(table)) == 2
