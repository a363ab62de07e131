"""Tests cells as flat lists of equations."""

import jax
import jax.numpy as jnp
import pytest
from packed_cells import spec

from edbatch.cell.cell_graph import (
    drop_dead,
    sort_nodes,
    trace_cell,
)
from edbatch.cell.jaxpr import name_of, rewire
from edbatch.cell.simplify import simplify


def graph_of(function, params, *inputs):
    return trace_cell(function, spec(params), spec(inputs))[0]


def names(graph):
    return [name_of(node) for node in graph.nodes]


def test_calls_are_replaced_by_bodies_but_for_those_with_rules():
    @jax.jit
    def outer(x):
        return jax.jit(jnp.sin)(x) + jax.nn.relu(x) + jax.checkpoint(jnp.cos)(x)

    graph = graph_of(lambda _, x: outer(outer(x)), {}, jnp.ones(3))
    once = ["sin", "custom_jvp_call", "add", "checkpoint", "add"]
    found = [name.replace("remat2", "checkpoint") for name in names(graph)]
    assert found == [*once, *once]


def test_constants_are_found_once():
    table = jnp.arange(3.0)
    graph = graph_of(lambda _, x: jax.jit(lambda x: x * table)(x) + table, {}, table)
    assert len(graph.constants) == 1


def test_equal_equations_are_one():
    def cell(_, x):
        one, two = (x.astype(jnp.bfloat16) for _ in range(2))
        return jnp.sin(one) + jnp.sin(two), jnp.cos(x) + 1, jnp.cos(x) + 2

    graph = simplify(graph_of(cell, {}, jnp.ones(3)))
    assert sorted(names(graph)) == ["add"] * 3 + ["convert_element_type", "cos", "sin"]


def test_dead_equations_are_dropped_but_for_effects():
    def cell(_, x):
        jax.debug.print("{}", jnp.sin(x)[0])
        jnp.cos(x)
        return x

    graph = simplify(graph_of(cell, {}, jnp.ones(3)))
    assert "sin" in names(graph)
    assert "cos" not in names(graph)


def test_nodes_in_any_order_are_sorted():
    graph = graph_of(lambda _, x: jnp.exp(jnp.sin(jnp.cos(x))), {}, jnp.ones(3))
    assert sort_nodes(graph.nodes[::-1]) == graph.nodes
    assert sort_nodes(()) == ()
    assert drop_dead(graph.nodes[:2], graph.outputs) == ()


def test_effects_keep_their_order():
    def cell(_, x):
        jax.debug.print("first {}", jnp.sin(x)[0])
        jax.debug.print("second {}", x[0])

    graph = graph_of(cell, {}, jnp.ones(3))
    acting = [node for node in graph.nodes if node.effects]
    others = [node for node in graph.nodes if not node.effects]
    found = sort_nodes([*acting, *others[::-1]])
    assert [node for node in found if node.effects] == acting
    assert found.index(acting[0]) > found.index(others[0])


def test_nodes_that_wait_for_each_other_are_a_mistake():
    one = graph_of(lambda _, x: jnp.sin(jnp.cos(x)), {}, jnp.ones(3))
    first, second = one.nodes
    with pytest.raises(AssertionError, match="no node waits for itself"):
        sort_nodes([rewire(first, second.outvars), second])
