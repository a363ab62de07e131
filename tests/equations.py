"""Shared by the tests of models against NumPy: parameters and the LSTM."""

import jax
import numpy as np

from edbatch.models import get_workload

HIDDEN = 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def random_like(params, seed):
    """Random parameters of the same shapes; zeros could hide a mistake."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: rng.normal(0, 0.5, p.shape).astype(np.float32), params
    )


def wide(params):
    return jax.tree.map(lambda p: np.asarray(p, np.float64), params)


def gate(own, x, h):
    """A gate's pre-activation."""
    return x @ own["W"] + h @ own["U"] + own["b"]


def lstm_states(params, inputs):
    """The hidden state h at each step."""
    h, c = params["h"], params["c"]
    found = []
    for x in inputs:
        i, f, o, u = (gate(params[name], x, h) for name in "ifou")
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        h = sigmoid(o) * np.tanh(c)
        found.append(h)
    return found


def assert_close(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-5)


def sampled(name, count=5, **options):
    """A model, parameters and instances."""
    workload = get_workload(name, vocabulary_size=20, **options)
    instances = workload.sample(np.random.default_rng(3), count)
    params = workload.init_params(jax.random.key(0), HIDDEN)
    return workload.model, random_like(params, 1), instances
