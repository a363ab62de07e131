"""Tests that slices that partition a variable become a split."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from edbatch.cell import pack_cell
from edbatch.cell.cell_graph import trace_cell
from edbatch.cell.join_slices import join_slices

X = jax.ShapeDtypeStruct((6, 4), "float32")


def cut(*bounds, dim=0):
    return lambda _, x: [lax.slice_in_dim(x, *each, axis=dim) for each in bounds]


def joined(function):
    """Names of the primitives, before and after."""
    graph, _ = trace_cell(function, {}, [X])
    after = join_slices(graph)
    return [[each.primitive.name for each in some.nodes] for some in (graph, after)]


@pytest.mark.parametrize(
    "function",
    [
        cut((0, 2), (2, 6)),
        cut((2, 3), (3, 6), (0, 2)),
        cut((0, 1), (1, 4), dim=1),
        cut((0, 2), (2, 5)),  # a remainder
    ],
)
def test_slices_that_cover_a_variable_are_one_split(function):
    before, after = joined(function)
    assert set(before) == {"slice"} and len(before) > 1
    assert after == ["split"]


def test_what_no_slice_reads_is_the_last_part_of_a_split():
    graph, _ = trace_cell(cut((0, 2), (2, 5)), {}, [X])
    [split] = join_slices(graph).nodes
    assert split.params["sizes"] == (2, 3, 1)
    assert [each.outvars[0] for each in graph.nodes] == split.outvars[:2]
    assert len(set(split.outvars)) == 3


@pytest.mark.parametrize(
    "function",
    [
        cut((0, 2), (3, 6)),  # a gap
        cut((0, 3), (2, 6)),  # an overlap
        cut((2, 6)),
        lambda _, x: [x[0:2, 0:2], x[2:6, 2:4]],  # in two dimensions
        lambda _, x: [x[0:6:2], x[1:6:2]],  # with strides
    ],
)
def test_other_slices_stay(function):
    before, after = joined(function)
    assert after == before


def gates(params, x, h):
    names = "ifou"
    i, f, o, u = (
        x @ params["W" + k] + h @ params["U" + k] + params["b" + k] for k in names
    )
    return jnp.tanh(i * f) + o * u


def test_gates_of_a_wide_product_are_split():
    rng = np.random.default_rng(0)
    params = {
        kind + name: rng.normal(size=(5, 5) if kind in "WU" else 5).astype(np.float32)
        for name in "ifou"
        for kind in "WUb"
    }
    x, h = rng.normal(size=(2, 5)).astype(np.float32)
    packed = pack_cell(gates, jax.eval_shape(lambda: params), *[x, h])
    arrays = packed.pack(params)
    jaxpr = jax.make_jaxpr(packed.run)(arrays, x, h).jaxpr
    names = [each.primitive.name for each in jaxpr.eqns]
    assert names.count("split") == 1 and "slice" not in names

    def backward(arrays):
        return jax.grad(lambda each: packed.run(each, x, h).sum())(arrays)

    jaxpr = jax.make_jaxpr(backward)(arrays).jaxpr
    assert "pad" not in [each.primitive.name for each in jaxpr.eqns]
    found = jax.grad(lambda p: packed.run(packed.pack(p), x, h).sum())(params)
    expected = jax.grad(lambda p: gates(p, x, h).sum())(params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        found,
        expected,
    )
