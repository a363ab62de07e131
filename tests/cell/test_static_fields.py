"""Tests parts of the parameters whose static fields are equal but not identical."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb

PAIRS = [(0.0, -0.0), (-0.0, 0.0), (1, True), (True, 1), (1, 1.0), (1.0, True)]


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["weight"], meta_fields=["kind"]
)
@dataclasses.dataclass
class Layer:
    weight: object
    kind: object


@eb.cell
def turned(layer, x):
    factor = {bool: 3.0, int: 2.0, float: 1.0}[type(layer.kind)]
    if isinstance(layer.kind, float):
        factor = float(np.copysign(factor, layer.kind))
    return layer.weight * x * factor


def side_by_side(params, x):
    return tuple(turned(each, x) for each in params)


def in_turn(params, x):
    for each in params:
        x = turned(each, x)
    return x


def layers(kinds):
    return [Layer(jnp.float32(1 + 0.5 * k), kind) for k, kind in enumerate(kinds)]


@pytest.mark.parametrize("tiers", ["coarse", "fine"])
@pytest.mark.parametrize("kinds", PAIRS)
def test_two_parts(kinds, tiers):
    params, batched = layers(kinds), eb.batch(side_by_side)
    with eb.use_tiers(tiers):
        found = batched(params, [1.0, 2.0])
    expected = [[turned(each, x) for x in (1.0, 2.0)] for each in params]
    np.testing.assert_array_equal(found, expected)
    assert eb.verify(batched, params, [1.0, 2.0]).max_output_error == 0


@pytest.mark.parametrize("kinds", [*(2 * pair for pair in PAIRS), (1, True, 1.0) * 2])
def test_many_parts_that_could_share_a_loop(kinds):
    params, batched = layers(kinds), eb.batch(in_turn)
    found = batched(params, [1.0, 2.0])
    expected = [in_turn(params, x) for x in (1.0, 2.0)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    eb.verify(batched, params, [1.0, 2.0])


def test_verify_compiles_a_cell_anew_for_another_static_field():
    batched = eb.batch(in_turn)
    for kind in (1, True, 1.0):
        eb.verify(batched, layers([kind]), [1.0, 2.0])


def test_parts_of_one_kind_share_a_loop():
    params, batched = layers([1] * 6), eb.batch(in_turn)
    batched(params, [1.0, 2.0])
    loops = batched.plan([1.0], params=params).shape.program.loops
    assert len({each.type_id for each in loops}) < 6
