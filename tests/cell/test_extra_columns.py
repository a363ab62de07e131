"""Tests padding columns of wide matrices whose rows would be whole pages apart."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from packed_cells import assert_packed, count_products, normal

from edbatch.cell.lowering import extra_columns
from edbatch.target import CPU, GPU

pytestmark = pytest.mark.default_flags


@pytest.mark.parametrize(
    ("rows", "columns", "itemsize", "expected"),
    [
        (768, 1024, 4, 16),
        (257, 1024, 4, 16),
        (768, 2048, 4, 16),
        (768, 2048, 2, 32),
        (768, 512, 8, 8),
        (256, 1024, 4, 0),  # small
        (768, 1280, 4, 0),
        (768, 512, 4, 0),
        (768, 1024, 2, 0),
        (768, 1040, 4, 0),
    ],
)
def test_rows_of_whole_pages_get_one_more_line(rows, columns, itemsize, expected):
    assert extra_columns(rows, columns, itemsize, CPU) == expected
    assert extra_columns(rows, columns + expected, itemsize, CPU) == 0


def test_other_devices_have_other_caches():
    assert extra_columns(768, 1024, 4, GPU) == 0
    assert extra_columns(768, 512, 4, replace(GPU, page_bytes=2048)) == 16
    assert extra_columns(768, 1024, 4, replace(CPU, line_bytes=128)) == 32
    assert extra_columns(768, 1024, 4, replace(CPU, padded_bytes=768 * 4096)) == 0


def gates(params, x, h):
    i, f, o, u = (
        x @ params[f"W{g}"] + h @ params[f"U{g}"] + params[f"b{g}"] for g in "ifou"
    )
    return jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f) * h, jnp.tanh(o)


@pytest.mark.parametrize(("hidden", "columns"), [(256, 1040), (128, 512)])
def test_a_cell_with_such_rows(hidden, columns):
    params = {f"W{g}": normal(k, 3, hidden) for k, g in enumerate("ifou")}
    params |= {f"U{g}": normal(k, hidden, hidden) / 16 for k, g in enumerate("ifou")}
    params |= {f"b{g}": normal(k, hidden) for k, g in enumerate("ifou")}
    inputs = normal(0, 3), normal(1, hidden)
    packed = assert_packed(gates, params, *inputs, rtol=1e-3, atol=1e-4)
    [product] = packed.after.products
    assert product.right == (3 + hidden, columns)
    assert count_products(packed, params, *inputs) == 1


def test_nothing_copies_what_they_give():
    rows, hidden = 300, 256
    params = {f"W{g}": normal(k, rows, hidden) / 16 for k, g in enumerate("ifou")}
    params |= {f"b{g}": normal(k, hidden) for k, g in enumerate("ifou")}

    def four(params, x):
        return [jnp.tanh(x @ params[f"W{g}"] + params[f"b{g}"]) for g in "ifou"]

    packed = assert_packed(four, params, normal(0, rows), rtol=1e-3)
    assert [each.shape for each in packed.pack(params)] == [(rows, 1040), (1040,)]
    program = jax.make_jaxpr(packed.run)(packed.pack(params), normal(0, rows))
    names = [each.primitive.name for each in program.eqns]
    assert names.count("split") == 1
    assert not {"slice", "pad", "concatenate"} & {*names}
