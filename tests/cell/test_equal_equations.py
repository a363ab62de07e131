"""Equal equations that run as one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from packed_cells import assert_packed, normal, spec

from edbatch.cell import equal_equations, pack_cell
from edbatch.cell.cell_graph import find_parameter_only, trace_cell
from edbatch.cell.equal_equations import (
    ELEMENTWISE,
    OPERATIONS,
    find_equal,
)


def batches(function, *inputs, elementwise=True):
    graph, _ = trace_cell(function, {}, spec(inputs))
    early = frozenset().union(*find_parameter_only(graph))
    names = OPERATIONS | ELEMENTWISE if elementwise else OPERATIONS
    found = find_equal(graph, early, names)
    return [(each[0].primitive.name, len(each)) for each in found]


def names_of(packed, params, *inputs):
    program = jax.make_jaxpr(packed.run)(packed.pack(params), *inputs)
    return [eqn.primitive.name for eqn in program.eqns]


def test_only_equal_equations_on_independent_values_are_one_batch():
    def cell(_, x, y):
        a, b = jnp.tanh(x), jnp.tanh(y)
        c = jnp.tanh(a * b)
        return c, jnp.exp(x), jnp.exp(y[:2])

    x = jnp.ones(3)
    assert batches(cell, x, x) == [("tanh", 2)]


def test_operands_and_parameters_must_agree():
    def cell(_, x, y):
        powers = lax.integer_pow(x, 3), lax.integer_pow(y, 3), lax.integer_pow(y, 4)
        return x * 2.0, y * 2.0, x * 3.0, powers

    found = batches(cell, *[jnp.ones(3)] * 2)
    assert sorted(found) == [("integer_pow", 2), ("mul", 2)]


def test_the_fewest_batches_wait_for_each_other():
    def cell(_, x, y):
        # sin runs at different depths of the two, yet in one batch.
        return jnp.sin(jnp.cos(x)), jnp.cos(jnp.sin(y))

    # cos x, then sin of both, then cos: or sin y, then cos of both, then sin.
    found = batches(cell, *[jnp.ones(3)] * 2)
    assert [count for _, count in found] == [2]


def test_without_time_to_search_the_largest_share_goes_first(monkeypatch):
    monkeypatch.setattr(equal_equations, "_MOST_STEPS", 0)

    def cell(_, *xs):
        return [jnp.sin(jnp.cos(x)) for x in xs]

    assert batches(cell, *[jnp.ones(3)] * 4) == [("cos", 4), ("sin", 4)]


def test_elementwise_equations_only_on_request():
    def cell(_, x, y):
        return jnp.tanh(x), jnp.tanh(y), jnp.sum(x), jnp.sum(y)

    x = jnp.ones(3)
    assert batches(cell, x, x, elementwise=False) == [("reduce_sum", 2)]
    assert len(batches(cell, x, x)) == 2


def test_rules_of_differentiation_stay():
    @jax.custom_jvp
    def halved(x):
        return jnp.tanh(x)

    halved.defjvp(lambda primals, tangents: (halved(*primals), 0.5 * tangents[0]))

    def cell(params, x):
        a, b, c = jnp.split(x @ params["W"], 3)
        return halved(a), jax.nn.relu(b), halved(c), jax.nn.relu(b + c)

    params = {"W": normal(0, 2, 9)}
    assert_packed(cell, params, normal(1, 2), elementwise=True)


def test_squashed_gates_are_slices_of_one_product():
    def cell(params, x, h):
        r, z, n = (x @ params[f"W{g}"] + params[f"b{g}"] for g in "rzn")
        s, t, m = (h @ params[f"U{g}"] for g in "rzn")
        r, z = jax.nn.sigmoid(r + s), jax.nn.sigmoid(z + t)
        return (1 - z) * jnp.tanh(n + r * m) + z * h

    params = {f"W{g}": normal(k, 3, 4) for k, g in enumerate("rzn")}
    params |= {f"U{g}": normal(k, 4, 4) for k, g in enumerate("rzn")}
    params |= {f"b{g}": normal(k, 4) for k, g in enumerate("rzn")}
    inputs = normal(5, 3), normal(6, 4)
    packed = assert_packed(cell, params, *inputs, elementwise=True)
    names = names_of(packed, params, *inputs)
    assert names.count("dot_general") == 2
    assert names.count("logistic") == 1
    assert "concatenate" not in names


def test_reductions_of_gates_are_one():
    def cell(params, x):
        gates = [x @ params[name] for name in "abc"]
        return [gate - jnp.mean(gate) for gate in gates]

    params = {name: normal(k, 3, 4) for k, name in enumerate("abc")}
    packed = assert_packed(cell, params, normal(4, 3))
    assert names_of(packed, params, normal(4, 3)).count("reduce_sum") == 1


def test_a_batch_that_would_copy_more_than_it_saves_is_not_made():
    def cell(_, x, y):
        return jnp.sum(jnp.exp(x)), jnp.sum(jnp.exp(y))

    large = normal(0, 100)
    packed = assert_packed(cell, {}, large, large)
    assert names_of(packed, {}, large, large).count("reduce_sum") == 2
    packed = assert_packed(cell, {}, large, large, overhead=1000)
    assert names_of(packed, {}, large, large).count("reduce_sum") == 1


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0)])
def test_parts_of_an_input_are_read_as_one_slice(order):
    def cell(params, x):
        parts = jnp.split(x, 3)
        return [jnp.tanh(parts[k]) for k in order]

    packed = pack_cell(cell, {}, spec(normal(0, 6)), elementwise=True)
    names = names_of(packed, {}, normal(0, 6))
    assert names.count("tanh") == 1
    assert "concatenate" not in names
    found = packed.run((), normal(0, 6))
    for one, two in zip(found, cell({}, normal(0, 6)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("stop", [2, 3])
def test_parts_that_are_apart_are_not_joined(stop):
    def cell(params, x):
        return jnp.tanh(x[:2]), jnp.tanh(x[stop : stop + 2])

    packed = assert_packed(cell, {}, normal(0, 6), elementwise=True)
    assert names_of(packed, {}, normal(0, 6)).count("tanh") == stop - 1


def test_one_value_may_stand_in_two_lanes():
    def cell(params, x, y):
        a, b = jnp.split(x @ params["W"], 2)
        return jnp.sum(a * y), jnp.sum(a + y), a - y, b - y, a - 2 * y

    params = {"W": normal(0, 3, 8)}
    assert_packed(cell, params, normal(1, 3), normal(2, 4), elementwise=True)
