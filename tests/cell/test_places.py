"""Tests slices that replace copies."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from packed_cells import normal, spec

from edbatch.cell.cell_graph import trace_cell
from edbatch.cell.emitter import Emitter
from edbatch.cell.jaxpr import as_function, name_of
from edbatch.cell.places import (
    Place,
    concatenated,
    find_places,
    read_place,
)
from edbatch.cell.simplify import simplify

X, Y = normal(0, 6, 4), normal(1, 6, 4)


def joined(cut, join):
    """Joins pieces that `cut` takes from X and Y; returns the result and its method."""
    graph, _ = trace_cell(lambda _, *inputs: cut(*inputs), {}, spec([X, Y]))
    graph = simplify(graph)
    places = {}
    for node in graph.nodes:
        places.update(find_places(node, places))
    emitter = Emitter()
    result = join(emitter, places, graph.outputs)
    names = [name_of(each) for each in emitter.nodes]
    [found] = as_function(graph.inputs, [*graph.nodes, *emitter.nodes], [result])(X, Y)
    return found, names


def split_rows(x, _):
    return jnp.split(x, 3)


CUTS = [
    (split_rows, 0, []),
    (lambda x, _: jnp.split(x, 3)[1:], 0, ["slice"]),
    (lambda x, _: jnp.split(x, 3)[::2], 0, ["concatenate"]),
    (lambda x, _: jnp.split(x, 3)[::-1], 0, ["concatenate"]),
    (lambda x, _: [x[:2], x[2:3], x[3:5]], 0, ["slice"]),
    (lambda x, _: [x[:2], x[3:5]], 0, ["concatenate"]),
    (lambda x, _: [x[:4:2], x[4:]], 0, ["concatenate"]),
    (lambda x, y: [x[:3], y[3:]], 0, ["concatenate"]),
    (lambda x, y: [x[:3], y], 0, ["concatenate"]),
    (lambda x, _: [x[:, :1], x[:, 1:]], 1, []),
    (lambda x, _: [x[:3, :2], x[3:, :2]], 0, ["concatenate"]),
    (lambda x, _: [x[:3], x[3:]], 1, ["concatenate"]),
    (lambda x, _: [x[2], x[3]], 0, ["slice", "reshape"]),
    (lambda x, _: [x[3], x[2]], 0, ["concatenate"]),
    (lambda x, _: [x[2], x[3:4].reshape(4)], 0, ["slice", "reshape"]),
    (lambda x, _: [x], 0, []),
]


@pytest.mark.parametrize(("cut", "dim", "names"), CUTS)
def test_side_by_side(cut, dim, names):
    found, done = joined(cut, lambda *each: concatenated(*each, dim))
    np.testing.assert_array_equal(found, jnp.concatenate(cut(X, Y), dim))
    assert done == names


def test_a_whole_block_is_read_without_an_equation():
    graph, _ = trace_cell(lambda _, x: lax.sin(x), {}, spec([X]))
    emitter = Emitter()
    [block] = graph.inputs
    assert read_place(emitter, Place(block, 1, 0, 4)) is block
    assert emitter.nodes == []
