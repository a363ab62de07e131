import sys

import gymnasium
import jax
import numpy as np
import pytest

import edbatch as eb
from edbatch.models import get_workload

NEEDS = "needs sb3-contrib: pip install 'edbatch[agents]'"


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    words = ["--workload", "lattices", "--batch-size", "3", "--gamma", "0.5"]
    arguments = parse(words)
    assert arguments == experiment.Arguments("lattices", batch_size=3, gamma=0.5)


def test_ready_workloads_are_trained_and_compared_on_different_inputs(experiment):
    arguments = experiment.Arguments(batch_size=2, instances=5)
    to_train, held_out = experiment.recorded(arguments)
    for sampler in (to_train, held_out):
        graphs = [sampler(np.random.default_rng(seed)) for seed in range(9)]
        assert len({graph.type_keys for graph in graphs}) == 1
        assert {len(graph.instance_nodes) for graph in graphs} == {2}
    (ours,), (theirs,) = to_train.args, held_out.args
    assert len(ours) == len(theirs) == 5
    assert not {*map(id, ours)} & {*map(id, theirs)}


def test_without_sb3_contrib_it_says_what_to_install(experiment, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    arguments = experiment.Arguments("lattices", batch_size=2, minibatches=1)
    with pytest.raises(SystemExit, match=r"there is no torch; install it with: pip"):
        experiment.main(arguments)


@pytest.mark.slow
def test_a_tiny_run(run, tmp_path):
    pytest.importorskip("sb3_contrib", reason=NEEDS)
    words = "--workload trees --steps 64 --rollout 64 --batch-size 2 --minibatches 2"
    done = run(*words.split(), "--out", tmp_path)
    done.check_returncode()
    assert len((tmp_path / "progress.csv").read_text().splitlines()) == 2
    title, _, *rows, bound = done.stdout.splitlines()
    assert title.startswith("trees: batches per minibatch of 2, mean of 2 held out; 64")
    assert [row.split()[0] for row in rows] == [
        "MaskablePPO",
        "greedy",
        "agenda",
        "agenda-remaining",
        "depth",
    ]
    fewest = float(bound.removeprefix("lower bound"))
    assert all(float(row.split()[1]) >= fewest > 0 for row in rows)


@pytest.mark.slow
def test_a_model_is_batched_by_the_trained_agent(experiment):
    pytest.importorskip("sb3_contrib", reason=NEEDS)
    arguments = experiment.Arguments(steps=64, rollout=64, batch_size=2, instances=5)
    sampler, _ = experiment.recorded(arguments)
    keys = sampler(np.random.default_rng(0)).type_keys
    env = gymnasium.make("edbatch/Batching-v0", sampler=sampler, type_keys=keys)
    policy = experiment.train(env, arguments)
    workload = get_workload("tree-lstm", vocabulary_size=20)
    params = workload.init_params(jax.random.key(0), 4)
    batched = eb.batch(workload.model, policy=policy)
    trees = workload.sample(np.random.default_rng(1), 6)
    assert eb.verify(batched, params, trees).instances == 6
    assert batched.plan(trees).report.policy == "MaskablePPO"
