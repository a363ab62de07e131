"""Sentiment: a step-for-step comparison with unbatched training, and its files."""

import json
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import edbatch as eb
from edbatch.data import DataError
from edbatch.graph.context import jitted_cells

TREES = """(3 (2 It) (4 (4 works) (2 .)))
(1 (2 It) (0 (2 never) (1 works)))
(4 works)
(2 (2 a) (2 film))
"""


@pytest.fixture(autouse=True)
def few_widths(experiment, monkeypatch):
    monkeypatch.setattr(experiment, "SIZES", eb.Sizes(widths=(4, 16), headroom=2.0))


@pytest.fixture
def treebank(tmp_path):
    folder = tmp_path / "trees"
    folder.mkdir()
    for part in ("train", "dev", "test"):
        (folder / f"{part}.txt").write_text(TREES)
    return folder


def unbatched_losses(task, steps, batch_size):
    """Trains by definition: one tree after the other, without batching."""
    params, state = task.params, task.optimizer.init(task.params)
    losses = []
    loader = eb.Loader(task.batched, task.instances, batch_size, drop_last=True)
    for item, _ in zip(loader.epochs(), range(steps), strict=False):

        def loss(params, item=item):
            judged = [
                task.batched.model(params, task.instances[k])["nodes"]
                for k in item.index
            ]
            return jnp.mean(jnp.stack([each["loss"] for one in judged for each in one]))

        with jitted_cells():
            value, grads = jax.value_and_grad(loss)(params)
        updates, state = task.optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return losses


def test_the_learning_curve_is_that_of_unbatched_training(experiment, parse, tmp_path):
    from training import train

    words = "--hidden 4 --batch-size 3 --epochs 2 --trees 6 --min-count 1"
    arguments = parse([*words.split(), "--out", str(tmp_path)])
    task = experiment.make_task(arguments)
    history = train(task, arguments)
    assert len(history.losses) == 4
    expected = unbatched_losses(task, 4, 3)
    np.testing.assert_allclose(history.losses, expected, rtol=1e-4)
    assert expected[-1] < expected[0]


def test_the_made_up_rule_is_learnt(experiment, parse, tmp_path):
    words = "--hidden 32 --batch-size 10 --epochs 8 --trees 600 --learning-rate 0.1"
    history = experiment.main(parse([*words.split(), "--out", str(tmp_path)]))
    best = history.best("roots")["test"]
    assert best["roots"] > 0.55 and best["nodes"] > 0.85  # by chance 0.2, 0.45


def test_a_treebank_is_read(experiment, parse, treebank):
    task = experiment.make_task(parse(["--data", str(treebank), "--hidden", "4"]))
    assert [tree.num_nodes() for tree in task.instances] == [5, 5, 1, 3]
    judged = task.batched.model(task.params, task.instances[0])
    assert len(judged["nodes"]) == 5
    assert judged["root"] is judged["nodes"][-1]


def test_made_up_labels_follow_from_the_words(experiment):
    trees = experiment.make_up(np.random.default_rng(0), 50)
    for tree in trees:
        for node in tree.postorder():
            assert node.label in experiment.LABELS
            if node.is_leaf:
                continue
            left, right = (int(each.label) - 2 for each in node.children)
            value = -right if node.left.word == "not" else left + right
            assert int(node.label) - 2 == min(2, max(-2, value))
    assert len({tree.label for tree in trees}) == 5


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("(5 (2 a) (2 b))", "<Tree"),
        ("(S (2 a) (2 b))", "<Tree"),
        ("(3 (2 a) (2 b) (2 c))", "4 nodes"),
        ("(3 (3 (2 a) (2 b)))", "4 nodes"),
    ],
)
def test_a_treebank_of_another_kind(experiment, tmp_path, line, found):
    file = tmp_path / "train.txt"
    file.write_text(f"(4 works)\n{line}\n")
    with pytest.raises(
        DataError, match=r"train\.txt, tree 2: every node must"
    ) as error:
        experiment.read_part(file)
    assert found in str(error.value)


@pytest.mark.slow
def test_a_killed_process_goes_on_to_the_same_curve(script, tmp_path):
    words = "--hidden 4 --batch-size 5 --trees 40 --epochs 4 --seed 3"
    often = "--checkpoint-steps 3 --progress-steps 1"

    def start(name, *more):
        own = [*words.split(), *often.split(), "--out", str(tmp_path / name), *more]
        command = [sys.executable, "-W", "error", script, *own]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def losses(name):
        return json.loads((tmp_path / name / "metrics.json").read_text())["losses"]

    whole = start("whole")
    whole.communicate()
    assert whole.returncode == 0
    killed = start("killed")
    next(line for line in killed.stdout if line.startswith("epoch 1  step 6/8"))
    killed.kill()
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    resumed = start("killed", "--resume")
    printed, _ = resumed.communicate()
    # Killed after step 14, when step 15 may already have been saved.
    assert printed.splitlines()[0] in [f"going on from step {k}" for k in (12, 15, 16)]
    assert len(losses("whole")) == 32
    np.testing.assert_allclose(losses("killed"), losses("whole"), rtol=1e-5)
