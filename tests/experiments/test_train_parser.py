"""A tiny run of the parser, and its scores."""

import numpy as np
import pytest
from conllu_text import conllu

from edbatch.data import ParsedSentence

SENTENCES = (
    "the/DET/2/det dog/NOUN/3/nsubj runs/VERB/0/root ./PUNCT/3/punct",
    "dogs/NOUN/2/nsubj run/VERB/0/root",
    "he/PRON/2/nsubj runs/VERB/0/root fast/ADV/2/advmod",
)
CROSSING = "a/X/3/dep b/X/4/dep c/X/0/root d/X/3/dep"


@pytest.fixture
def files(tmp_path):
    file = tmp_path / "parsed.conllu"
    file.write_text(conllu((*SENTENCES * 6, CROSSING)))
    return ["--data", str(file), "--test-data", str(file)]


def test_a_tiny_run(experiment, parse, files, few_widths, tmp_path, capsys):
    words = "--hidden 8 --batch-size 4 --epochs 12 --learning-rate 0.03 --min-count 1"
    history = experiment.main(
        parse([*files, *words.split(), "--out", str(tmp_path / "out")])
    )
    assert history.losses[-1] < 0.5 * history.losses[0]
    best = history.best("las")["test"]
    assert best["uas"] >= best["las"] > 0.8
    printed = capsys.readouterr().out
    assert (
        "to train on; 1 with crossing arcs" in printed or "to train on; 0 " in printed
    )
    assert (tmp_path / "out" / "curve.png").exists()


def test_the_losses_of_a_sentence(experiment, parse, files, few_widths):
    task = experiment.make_task(parse([*files, "--hidden", "3"]))
    assert all(each.is_projective for each in task.instances)
    judged = task.batched.model(task.params, task.instances[0])
    assert len(judged) == 2 * len(task.instances[0]) - 1
    assert all(float(each["loss"]) > 0 for each in judged)


def test_attachment_scores(experiment):
    judged = [
        experiment.Judged(
            ParsedSentence((1, 2, 3, 4), (1,) * 4, (2, 0, 2, 2), (5, 0, 6, 7)),
            (False, False, False, True),
        ),
        experiment.Judged(ParsedSentence((1,), (1,), (0,), (0,)), (False,)),
    ]
    found = [(np.array([2, 0, 1, 2]), np.array([5, 0, 6, 8])), ([0], [0])]
    assert experiment.attachment(found, judged) == pytest.approx(
        {"uas": 4 / 5, "las": 3 / 5, "uas_words": 3 / 4, "las_words": 3 / 4}
    )


def test_a_minibatch_is_decoded_in_order(experiment, parse, files, few_widths):
    task = experiment.make_task(parse([*files, "--hidden", "3"]))
    judged = [experiment.Judged(each, (False,) * len(each)) for each in task.instances]
    together = experiment.decoder(8)(task.params, judged)
    for (heads, relations), each in zip(together, judged, strict=True):
        alone = experiment.parse(task.params, each.sentence)
        assert list(heads) == alone["heads"]
        assert list(relations) == alone["relations"]
