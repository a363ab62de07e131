"""A tiny run of the tagger, with and without characters."""

import pytest

SENTENCES = ("the/DET dog/NOUN runs/VERB", "dogs/NOUN run/VERB", "he/PRON runs/VERB")


@pytest.fixture
def files(tmp_path):
    lines = (each.replace("/", "\t").replace(" ", "\n") for each in SENTENCES * 4)
    file = tmp_path / "tagged.conll"
    file.write_text("\n\n".join(lines) + "\n")
    return ["--data", str(file), "--test-data", str(file)]


def test_a_tiny_run(experiment, parse, files, few_widths, tmp_path):
    words = "--hidden 8 --batch-size 4 --epochs 6 --learning-rate 0.05 --min-count 1"
    history = experiment.main(
        parse([*files, *words.split(), "--out", str(tmp_path / "out")])
    )
    assert len(history.losses) == 12
    assert history.losses[-1] < 0.5 * history.losses[0]
    assert history.best("accuracy")["test"]["accuracy"] > 0.8
    assert (tmp_path / "out" / "curve.png").exists()


def test_the_losses_of_a_sentence(experiment, parse, files, few_widths):
    words = ["--hidden", "3", "--workload", "bilstm-tagger-char"]
    task = experiment.make_task(parse([*files, *words]))
    sentence = task.instances[0]
    judged = task.batched.model(task.params, sentence)
    assert len(judged) == len(sentence.words)
    assert all(float(each["loss"]) > 0 for each in judged)


def test_another_workload(experiment, parse):
    with pytest.raises(SystemExit, match="is one of bilstm-tagger, bilstm-tagger-char"):
        experiment.main(parse(["--workload", "tree-lstm"]))
