import zipfile

import numpy as np
import pytest

WORDS = "--workloads tree-lstm --hidden 4 --batch-size 3"


def compare(experiment, capsys, *folders):
    ways = zip(("--before", "--after"), map(str, folders), strict=True)
    words = [word for way in ways for word in way]
    experiment.main([*WORDS.split(), "--rounds", "1", *words])
    head, *rows = capsys.readouterr().out.splitlines()
    assert tuple(head.split(" | ")) == experiment.COLUMNS
    return [row.split(" | ") for row in rows]


@pytest.fixture(scope="module")
def stored(experiment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stored") / "new"
    experiment.main([*WORDS.split(), "--store", str(folder)])
    return folder


@pytest.fixture(autouse=True)
def no_kept_memory(experiment, monkeypatch):
    monkeypatch.setattr(experiment.eb, "keep_memory", lambda: None)


def test_a_version_is_no_slower_than_itself(experiment, stored, capsys):
    forward, gradient = compare(experiment, capsys, stored, stored)
    assert forward[:3] == ["tree-lstm", "4", "forward"]
    assert gradient[:3] == ["tree-lstm", "4", "gradient"]
    for *_, before, after, share, apart in (forward, gradient):
        assert float(before) > 0 and float(after) > 0 and float(share) > 0
        assert float(apart) == 0


def test_results_that_differ_show(experiment, stored, capsys, tmp_path):
    words = WORDS.replace("tree-lstm", "tree-lstm --seed 1")
    experiment.main([*words.split(), "--store", str(tmp_path)])
    for *_, apart in compare(experiment, capsys, stored, tmp_path):
        assert float(apart) > 1e-3


def test_results_are_those_of_the_model(experiment, stored):
    import jax

    import edbatch as eb

    model, params, instances = experiment.ready_model("tree-lstm", 4, 3, 0)
    batched = eb.batch(model, params=params)
    forward, gradient = experiment.load(stored / "tree-lstm-4.zip")
    plan = batched.plan(instances)
    expected = jax.tree.leaves(jax.jit(batched.apply)(params, plan))
    assert experiment.difference(expected, forward()) < 1e-5
    with zipfile.ZipFile(stored / "tree-lstm-4.zip") as file:
        assert set(file.namelist()) == {*experiment.PASSES, "inputs"}
    value, *gradients = gradient()
    assert np.isfinite(value) and len(gradients) == len(jax.tree.leaves(params))


def test_without_folders_it_says_what_to_give(experiment):
    with pytest.raises(SystemExit, match="give --store FOLDER, or --before FOLDER"):
        experiment.main([])
