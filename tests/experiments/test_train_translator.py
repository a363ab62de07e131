"""A tiny run of the translator, and its scores."""

import numpy as np
import pytest

from edbatch.data import SentencePair

PAIRS = (
    "a b\tx y",
    "b a\ty x",
    "a a b\tx x y",
    "b\ty",
    "b b\ty y",
    "a\tx",
    "a b a\tx y x",
)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_text("\n".join(PAIRS * 4) + "\n")
    return ["--data", str(file)]


def test_a_tiny_run(experiment, parse, file, few_widths, tmp_path):
    words = "--hidden 8 --batch-size 4 --epochs 8 --learning-rate 0.05 --beam-width 2"
    history = experiment.main(
        parse([*file, *words.split(), "--out", str(tmp_path / "out")])
    )
    assert history.losses[-1] < 0.5 * history.losses[0]
    found = history.best("bleu")["test"]
    assert list(found) == ["bleu", "exact", "bleu_beam", "exact_beam"]
    assert (tmp_path / "out" / "curve.png").exists()


def source(experiment, *references):
    pair = SentencePair([1], [1, 2])
    return experiment.Source(pair, tuple(tuple(each) for each in references))


def test_bleu_of_the_same_and_of_other_words(experiment):
    sources = [source(experiment, [3, 4, 5, 6, 7]), source(experiment, [3, 4, 5, 6])]
    same = [each.references[0] for each in sources]
    assert experiment.score(same, sources) == {"bleu": 1.0, "exact": 1.0}
    assert experiment.score([(8,) * 5] * 2, sources) == {"bleu": 0.0, "exact": 0.0}


def test_bleu_by_hand(experiment):
    #   found 3 4 5 6 6   against 3 4 5 6 7 8: 4 of 5, 3 of 4, 2 of 3, 1 of 2; too short
    found = experiment.score([(3, 4, 5, 6, 6)], [source(experiment, range(3, 9))])
    precisions = np.array([4 / 5, 3 / 4, 2 / 3, 1 / 2])
    expected = np.exp(1 - 6 / 5) * precisions.prod() ** 0.25
    assert found["bleu"] == pytest.approx(expected)


def test_every_reference_counts(experiment):
    both = source(experiment, [3, 4, 5, 6], [7, 8, 9, 3])
    assert experiment.score([(7, 8, 9, 3)], [both])["bleu"] == pytest.approx(1.0)
    # A word counts as often as it is in a single reference, not in all together.
    twice = experiment.score([(3, 3, 4, 5, 6)], [both])["bleu"]
    once = experiment.score([(3, 3, 4, 5, 6)], [source(experiment, [3, 4, 5, 6])])
    assert twice == pytest.approx(once["bleu"])


def test_no_source_is_in_two_parts(experiment):
    pairs = [SentencePair([k % 30], [1, k, 2]) for k in range(60)]
    parts = experiment.split(pairs, 0)
    assert [len(part) for part in parts] == [24, 3, 3]
    sources = [each.pair.source for part in parts for each in part]
    assert len(set(sources)) == 30
    assert all(len(each.references) == 2 for part in parts for each in part)


def test_translations_end_before_their_mark(experiment, parse, file, few_widths):
    task = experiment.make_task(parse([*file, "--hidden", "4"]))
    sources = [source(experiment)] * 3
    found = experiment.decoder(experiment.greedy, 2)(task.params, sources)
    alone = experiment.greedy(task.params, sources[0].pair)["words"]
    assert found == [tuple(word for word in alone if word != 2)] * 3
