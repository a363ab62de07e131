"""Cells with several outputs of one shape, in chunks of any number of nodes."""

import jax
import numpy as np
import pytest
from asking_models import embed, join, make_params

import edbatch as eb
from edbatch.waves.asked_values import handles_in

PARAMS = make_params()


def pair(params, word):
    return join(params["join"], embed(params, word), embed(params, word + 1))


@pytest.mark.parametrize("tier", ["coarse", "fine"])
@pytest.mark.parametrize("count", [1, 3, 5, 6, 7, 11])
def test_padding_overwrites_no_output(tier, count):
    with eb.use_tiers(tier):
        runner, model = eb.batch(pair).wave_runner(PARAMS)
        runs = [runner.start(k, lambda k=k: model(k)) for k in range(count)]
        for run in runs:
            run.asked = handles_in(run.result)
        for run, answers in runner.answers(runner.launch(runs)):
            expected = jax.tree.leaves(pair(PARAMS, run.index))
            for found, leaf in zip(answers, expected, strict=True):
                np.testing.assert_allclose(found, leaf, rtol=1e-4, atol=1e-5)
