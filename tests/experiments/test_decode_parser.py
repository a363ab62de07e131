"""The comparison of decoding methods runs, and all methods find the same parses."""

import jax
import numpy as np

import edbatch as eb
from edbatch.models import get_workload
from edbatch.models.transition_parser import init_params, parse


def test_the_table_is_printed(experiment, capsys):
    experiment.main(["--hidden", "2", "--sentences", "3", "--rounds", "1"])
    head, row = capsys.readouterr().out.splitlines()
    assert head == experiment.HEAD and row.split()[0] == "2"


def test_rounds_parse_as_the_model_does(experiment):
    workload = get_workload("transition-parser")
    sentences = workload.sample(np.random.default_rng(1), 3)
    params = init_params(jax.random.key(0), 4, 10_000)
    batched = eb.batch(experiment.score_next)
    found = experiment.parse_in_rounds(batched, params, sentences)
    expected = [parse(params, each)["transitions"] for each in sentences]
    assert found == expected
