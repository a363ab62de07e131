"""Tests splits of cells at a binding time."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from packed_cells import normal, spec

from edbatch.cell.binding_time import (
    BindingTime,
    binding_times,
    parameter_values,
    split,
)
from edbatch.cell.cell_graph import trace_cell
from edbatch.cell.jaxpr import name_of
from edbatch.cell.simplify import simplify


def graph_of(function, params, *inputs):
    return simplify(trace_cell(function, spec(params), spec(inputs))[0])


def names(nodes):
    return [name_of(node) for node in nodes]


def parameter_split(graph, **options):
    return split(graph, BindingTime.PARAM, binding_times(graph), **options)


def run_both(graph, params, *inputs):
    """Runs the run-time part on the results of the precomputed part."""
    parts = parameter_split(graph)
    handed_on = parts.precomputed_function(graph.parameters, parts.handed_on)(*params)
    return parts.run_time_function((*parts.handed_on, *graph.inputs))(
        *handed_on, *inputs
    )


def test_every_time_and_the_later_of_two():
    table = np.arange(3.0, dtype=np.float32)

    def cell(p, x, h):
        zeros = lax.broadcast(0.0, (3,))
        return zeros, zeros + table, p + zeros, x * p, x + h

    graph = graph_of(cell, normal(0, 3), normal(1, 3), normal(2, 3))
    times = binding_times(graph, graph.inputs[:1])
    found = [times[each].name for each in graph.outputs]
    assert found == ["CONST", "PARAM", "PARAM", "INPUT", "OPERAND"]
    assert set(graph.outputs[1:3]) <= parameter_values(graph)
    assert graph.outputs[0] not in parameter_values(graph)


def test_constants_stay_where_they_are_read_and_parameters_are_computed_once():
    def cell(p, x):
        ones = lax.broadcast(np.float32(1), (3,))
        return x + ones, x + jnp.exp(p), jnp.exp(p)

    graph = graph_of(cell, normal(0, 3), normal(1, 3))
    parts = parameter_split(graph)
    assert names(parts.precomputed) == ["exp"]
    assert sorted(names(parts.run_time)) == ["add", "add", "broadcast_in_dim"]
    assert len(parts.handed_on) == len(parts.computed) == 1


def test_views_are_made_where_they_are_read():
    def cell(p, x):
        return x + lax.broadcast(jnp.exp(p), (4,)).T

    graph = graph_of(cell, normal(0, 3), normal(1, 3, 4))
    parts = parameter_split(graph)
    assert names(parts.precomputed) == ["exp"]
    assert [each.aval.shape for each in parts.handed_on] == [(3,)]
    kept = parameter_split(graph, remake=False)
    assert [each.aval.shape for each in kept.handed_on] == [(3, 4)]
    assert names(kept.run_time) == ["add"]


def test_effects_on_parameters_belong_to_the_late_partition():
    def cell(p, x):
        jax.debug.print("{}", jnp.exp(p)[0])
        return x

    graph = graph_of(cell, normal(0, 3), normal(1, 3))
    parts = parameter_split(graph)
    assert "debug_print" in names(parts.run_time) or "debug_callback" in names(
        parts.run_time
    )
    assert "exp" in names(parts.precomputed)


def test_what_is_not_worth_it_is_computed_again():
    def cell(p, x, h):
        return jnp.tanh(h + jnp.sin(x)) * jnp.sin(x @ p)

    graph = graph_of(cell, normal(0, 3, 3), normal(1, 3), normal(2, 3))
    times = binding_times(graph, graph.inputs[:1])
    [product] = [node for node in graph.nodes if name_of(node) == "dot_general"]
    [last] = [
        node.outvars[0]
        for node in graph.nodes
        if name_of(node) == "sin" and node.invars[0] is product.outvars[0]
    ]
    worth = {product.outvars[0], last}
    parts = split(graph, BindingTime.INPUT, times, worth=worth.__contains__)
    assert parts.computed == (last,)
    assert sorted(names(parts.run_time)) == ["add", "mul", "sin", "tanh"]
    assert names(parts.precomputed) == ["dot_general", "sin"]


def test_a_stopped_gradient_stays_stopped():
    def cell(p, x):
        stopped = jnp.exp(lax.stop_gradient(p))
        return x * lax.fori_loop(0, stopped[0].astype(int), lambda _, y: y, stopped)

    params, x = normal(0, 3), normal(1, 3)
    graph = graph_of(cell, params, x)

    def loss(p):
        return run_both(graph, [p], x)[0].sum()

    np.testing.assert_array_equal(jax.grad(loss)(params), 0)
    np.testing.assert_allclose(loss(params), cell(params, x).sum(), rtol=1e-6)
    # There is no derivative with respect to the precomputed values either, which
    # programs would take: JAX cannot differentiate such a loop.
    parts = parameter_split(graph)
    assert len(parts.computed) == len(parts.handed_on) > 0
    late = parts.run_time_function((*parts.handed_on, *graph.inputs))
    arrays = parts.precomputed_function(graph.parameters, parts.handed_on)(params)
    is_float = [jnp.issubdtype(each.dtype, jnp.floating) for each in arrays]
    floats = tuple(k for k, each in enumerate(is_float) if each)
    assert floats
    bars = jax.grad(lambda *own: late(*own, x)[0].sum(), floats)(*arrays)
    assert not any(map(jnp.any, bars))


def test_results_of_effects_are_known_when_nodes_run():
    def cell(p, x):
        spec = jax.ShapeDtypeStruct((3,), jnp.float32)
        return x + io_callback(lambda y: y, spec, jnp.exp(p))

    graph = graph_of(cell, normal(0, 3), normal(1, 3))
    parts = parameter_split(graph)
    assert names(parts.precomputed) == ["exp"]
    assert names(parts.run_time) == ["io_callback", "add"]


def test_outputs_of_every_time():
    def cell(p, x):
        return 2.0, p, jnp.exp(p), x, x + p

    params, x = normal(0, 3), normal(1, 3)
    found = run_both(graph_of(cell, params, x), [params], x)
    for one, two in zip(found, cell(params, x), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)
