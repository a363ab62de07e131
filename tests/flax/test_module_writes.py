"""Cells that write to their module are refused, because the write would be lost."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import edbatch as eb

X = [np.full(4, 0.5 * k, np.float32) for k in (1, 2, 3)]


class Writes(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.count = nnx.Variable(jnp.float32(0))
        self.calls = 0
        self.seen = nnx.List([])
        self.cache = {"calls": 0}

    def variable(self, x):
        self.count[...] = self.count[...] + 1
        return self.linear(x) * self.count[...]

    def running(self, x):
        return self.norm(self.linear(x)[None])[0]

    def attribute(self, x):
        self.calls += 1
        return self.linear(x) * self.calls

    def element(self, x):
        self.seen.append(1.0)
        return self.linear(x) * len(self.seen)

    def container(self, x):
        self.cache["calls"] += 1
        return self.linear(x) * self.cache["calls"]

    def added(self, x):
        self.last = 1.0
        return self.linear(x)

    def sown(self, x):
        self.sow(nnx.Intermediate, "middle", x)
        return self.linear(x)

    def drops(self, x):
        return self.dropout(x)


class Reads(nnx.Module):
    """A module that writes nothing, although transforms pass its arrays through."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])
        self.scale = nnx.data(jnp.full(4, 2.0))
        self.rnn = nnx.RNN(nnx.GRUCell(1, 4, rngs=rngs))
        self.names = {"first": 0.5, "nested": [{1, 2}]}

    @functools.cached_property
    def shift(self):
        return self.names["first"]

    def plain(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x)) * self.scale + self.shift
        return self.linear(x)

    def rematerialized(self, x):
        return nnx.remat(lambda module, x: module.linear(x))(self, jnp.tanh(x))

    def jitted(self, x):
        return nnx.jit(lambda module, x: module.linear(x))(self, x)

    def recurrent(self, x):
        """Draws a random key, but only to initialize a carry of zeros."""
        return self.rnn(x[:, None])[-1]

    def evaluated(self, x):
        self.eval()
        return self.dropout(self.norm(self.linear(x)[None])[0])


def written_by_hand(method):
    """A model with a cell that calls a method of the module it is given."""

    @eb.cell
    def layer(module, x):
        return getattr(module, method)(x)

    return lambda module, x: layer(module, layer(module, x))


WRITES = {
    "variable": "count",
    "running": "norm.mean",
    "attribute": "calls",
    "element": "seen.0",
    "container": "cache",
    "added": "last",
    "sown": "middle",
}


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
@pytest.mark.parametrize(("method", "what"), WRITES.items())
def test_a_cell_written_by_hand_is_refused(method, what):
    module = Writes()
    batched = eb.batch(written_by_hand(method), params=module)
    with pytest.raises(eb.CellError, match=f"cell 'layer' writes to .*{what}"):
        batched(module, X)


def test_numbers_drawn_from_a_module_are_refused():
    module = Writes()
    batched = eb.batch(written_by_hand("drops"), params=module)
    with pytest.raises(eb.CellError, match=r"dropout\.rngs.*eb\.flax\.cell\(module\)"):
        batched(module, X)
    module.eval()
    assert np.array_equal(batched(module, X), np.stack(X))


@pytest.mark.parametrize("method", ["attribute", "element", "container", "added"])
def test_a_cell_made_of_a_module_may_not_write_attributes(method):
    module = Writes()
    cell = eb.flax.cell(module, method=method)
    batched = eb.batch(lambda params, x: cell(params, x), params=module)
    with pytest.raises(
        eb.CellError, match=f"writes to {WRITES[method]}, an attribute, but"
    ):
        batched(module, X)


@pytest.mark.parametrize(
    "method", ["plain", "rematerialized", "jitted", "recurrent", "evaluated"]
)
@pytest.mark.parametrize("as_state", [False, True])
def test_a_cell_that_writes_nothing_runs(method, as_state):
    module = Reads()
    graph, state = nnx.split(module)

    @eb.cell
    def of_state(params, x):
        return getattr(nnx.merge(graph, params), method)(x)

    model = (
        (lambda params, x: of_state(params, of_state(params, x)))
        if as_state
        else written_by_hand(method)
    )
    params = state if as_state else module
    batched = eb.batch(model, params=params)

    def alone(module, x):
        return getattr(module, method)(getattr(module, method)(x))

    expected = np.stack([alone(nnx.clone(module), x) for x in X])
    np.testing.assert_allclose(batched(params, X), expected, rtol=1e-5, atol=1e-6)


def test_a_module_among_others_in_the_parameters_is_watched():
    params = {"plain": jnp.ones(4), "modules": [Writes()]}

    @eb.cell
    def layer(modules, scale, x):
        return modules[0].variable(x) * scale

    batched = eb.batch(
        lambda params, x: layer(params["modules"], params["plain"], x), params=params
    )
    with pytest.raises(eb.CellError, match="writes to count, of class Variable"):
        batched(params, X)


def test_gradients_of_a_module_that_is_read():
    module = Reads()
    batched = eb.batch(written_by_hand("plain"), params=module)
    plan = batched.plan(X)

    def loss(module):
        return jnp.sum(batched.apply(module, plan) ** 2)

    def alone(module):
        return sum(jnp.sum(module.plain(module.plain(x)) ** 2) for x in X)

    found, expected = (
        jax.tree.leaves(nnx.grad(each)(module)) for each in (loss, alone)
    )
    for one, other in zip(found, expected, strict=True):
        largest = np.max(np.abs(other))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * largest)
