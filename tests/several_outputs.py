"""A model whose cells have several outputs of one shape, run in one wave."""

import jax
import numpy as np
from asking_models import embed, join

import edbatch as eb
from edbatch.waves.asked_values import returned_handles


def pair(params, word):
    return join(params["join"], embed(params, word), embed(params, word + 1))


def check_outputs(params, count):
    """Checks that each instance gets its own output, in chunks with padding rows."""
    runner, model = eb.batch(pair).wave_runner(params)
    runs = [runner.start(k, lambda k=k: model(k)) for k in range(count)]
    for run in runs:
        run.asked = returned_handles(run)
    for run, answers in runner.answers(runner.launch(runs)):
        expected = jax.tree.leaves(pair(params, run.index))
        for found, leaf in zip(answers, expected, strict=True):
            np.testing.assert_allclose(found, leaf, rtol=1e-4, atol=1e-5)
