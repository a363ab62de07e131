"""SICK: its files, its target distributions, and a tiny run."""

import numpy as np
import pytest

import edbatch as eb
from edbatch.data import DataError

# Two sentences, their heads, and a score, per line of a part.
PAIRS = [
    ("a dog runs", "2 3 0", "the dog is running", "2 4 4 0", "4.5"),
    ("a man sleeps", "2 3 0", "a dog runs", "2 3 0", "1"),
    ("dogs run", "2 0", "a dog runs", "2 3 0", "3.285"),
    ("the man runs", "2 3 0", "men sleep", "2 0", "2"),
]


@pytest.fixture
def sick(tmp_path):
    columns = list(zip(*PAIRS, strict=True))
    for part in ("train", "dev", "test"):
        folder = tmp_path / "sick" / part
        folder.mkdir(parents=True)
        names = ("a.toks", "a.parents", "b.toks", "b.parents", "sim.txt")
        for name, lines in zip(names, columns, strict=True):
            (folder / name).write_text("\n".join(lines) + "\n")
    return tmp_path / "sick"


def test_a_tiny_run(experiment, parse, sick, tmp_path, capsys):
    words = "--hidden 4 --vector 3 --similarity 2 --batch-size 2 --epochs 2"
    out = ["--data", str(sick), "--out", str(tmp_path / "out"), "--min-count", "1"]
    history = experiment.main(parse([*words.split(), *out]))
    assert len(history.losses) == 4 and np.isfinite(history.losses).all()
    assert set(history.best("pearson")["test"]) == {"pearson", "mse"}
    assert (tmp_path / "out" / "curve.png").exists()
    printed = capsys.readouterr().out
    assert "test pearson 0.8676, mse 0.2532" in printed
    assert "waited " in printed


def test_the_model_and_its_gradients_are_those_of_one_pair(experiment, parse, sick):
    words = ["--data", str(sick), "--hidden", "3", "--vector", "3", "--min-count", "1"]
    task = experiment.make_task(parse(words))
    found = eb.verify(task.batched, task.params, task.instances)
    assert found.instances == 4 and found.max_gradient_error is not None


def test_a_target_has_the_score_as_its_mean(experiment):
    scores = np.array([1, 1.4, 2.5, 3.285, 4, 5], np.float32)
    found = experiment.distributions(scores)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(found @ experiment.SCORES, scores, atol=1e-5)
    assert ((found > 0).sum(1) == [1, 2, 2, 2, 1, 1]).all()


def test_metrics(experiment):
    scores = np.array([1.0, 2.0, 4.0], np.float32)
    sure = np.log(experiment.distributions(scores) + 1e-30)
    outputs = [(None, sure[:2]), (None, sure[2:])]
    found = experiment.metrics(outputs, scores)
    assert found == pytest.approx({"pearson": 1.0, "mse": 0.0}, abs=1e-6)
    found = experiment.metrics(outputs, scores + 1)
    assert found == pytest.approx({"pearson": 1.0, "mse": 1.0}, abs=1e-5)


def test_a_folder_without_the_files(experiment, parse, tmp_path):
    with pytest.raises(
        SystemExit, match=r"--data names the folder of SICK, but .*a\.t"
    ):
        experiment.make_task(parse(["--data", str(tmp_path)]))


def test_a_part_cut_short(experiment, sick):
    (sick / "dev" / "sim.txt").write_text("3\n")
    with pytest.raises(DataError, match="a line for each pair; found 4, 4 and 1 lines"):
        experiment.read_pairs(sick / "dev")


def test_heads_that_are_no_tree(experiment, sick):
    (sick / "dev" / "b.parents").write_text("2 4 4 0\n2 3 0\n2 1 0\n2 0\n")
    with pytest.raises(DataError, match="following heads") as caught:
        experiment.read_pairs(sick / "dev")
    assert caught.value.__notes__[0].endswith("b.parents, line 3")


def test_the_published_files_are_read(experiment, shared_data):
    pairs, scores = experiment.read_pairs(shared_data / "sick" / "dev")
    assert len(pairs) == len(scores) == 500
    assert pairs[0].left.word == "smiling"
    assert scores[0] == np.float32(3.6)
