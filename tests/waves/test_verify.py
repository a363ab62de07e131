"""Tests `eb.verify` on models that ask for values."""

import jax.numpy as jnp
import numpy as np
import pytest
from asking_models import (
    embed,
    grow_tree,
    make_params,
    sample_words,
    score,
    shift_reduce,
    turn,
    wander,
)

import edbatch as eb
from edbatch.waves.instance_run import InstanceRun


@pytest.mark.parametrize(
    ("model", "instances"),
    [(shift_reduce, sample_words(6)), (grow_tree, range(5)), (wander, range(6))],
)
def test_models_that_ask_are_verified_with_their_gradients(model, instances):
    found = eb.verify(eb.batch(model), make_params(), list(instances))
    assert found.instances == len(instances) and found.outputs > 0
    assert found.max_gradient_error is not None and found.close_choices == 0


def test_a_wrong_value_is_found(monkeypatch):
    ask = InstanceRun._ask

    def wrong(self, handles):
        return [each * 1.001 for each in ask(self, handles)]

    monkeypatch.setattr(InstanceRun, "_ask", wrong)
    with pytest.raises(eb.VerificationError, match="value 0 that it asks for"):
        eb.verify(eb.batch(shift_reduce), make_params(), sample_words(4))


def test_close_choices_are_counted_and_followed(monkeypatch):
    """Rounding differences in values make one instance take another branch."""
    params = make_params()
    limits = {k: float(score(params, embed(params, k)[0])[0]) for k in range(4)}

    def model(params, k):
        state = embed(params, k)[0]
        limit = limits[k] if k == 2 else limits[k] - 1
        if eb.value(score(params, state))[0] <= limit:
            return turn(params, state, 1.0)
        return turn(params, state, 5.0)

    ask = InstanceRun._ask

    def rounded(self, handles):
        return [np.nextafter(each, np.float32(np.inf)) for each in ask(self, handles)]

    monkeypatch.setattr(InstanceRun, "_ask", rounded)
    found = eb.verify(eb.batch(model), params, [0, 1, 2, 3])
    assert found.close_choices == 1


@eb.cell
def is_less(params, x):
    """Jumps where the product, for 1, is just above the bias."""
    return jnp.argmax(jnp.stack([params["weight"] * x, jnp.float32(1 - 2**-24)]))


@eb.cell
def scale(params, x, factor):
    return params["weight"] * x * factor


def scaled(params, x):
    return scale(params, x, 1.0 + float(eb.value(is_less(params, x))))


def test_values_may_differ_where_they_jump_within_rounding(monkeypatch):
    ask = InstanceRun._ask

    def one(self, handles):
        return [np.ones_like(each) for each in ask(self, handles)]

    monkeypatch.setattr(InstanceRun, "_ask", one)
    batched, params = eb.batch(scaled), {"weight": np.float32(1)}
    found = eb.verify(batched, params, [np.float32(1), np.float32(0.5)])
    assert (found.output_jumps, found.close_choices) == (1, 1)
    match = "instance 1, value 0 that it asks for"
    with pytest.raises(eb.VerificationError, match=match):
        eb.verify(batched, params, [np.float32(1), np.float32(2)])
