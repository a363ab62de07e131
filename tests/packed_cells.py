"""Shared by the tests of packing: compares a packed cell with the cell itself."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from quick_compile import quick_compile

from edbatch.cell import PackedCell, pack_cell


def spec(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def normal(seed, *shape, dtype=jnp.float32):
    x = np.random.default_rng((seed, *shape)).normal(size=shape)
    return jnp.asarray(x * 0.7, dtype)


def assert_packed(function, params, *inputs, rtol=1e-4, atol=1e-5, **options):
    """Packs a cell; checks the outputs and gradients of two rows; returns it."""
    packed = pack_cell(function, spec(params), *spec(inputs), **options)
    expected, found = run_compiled(
        lambda *each: results(function, packed, *each), params, inputs
    )
    assert_equal(found, expected, rtol=rtol, atol=atol)
    return packed


def run_compiled(function, *arguments):
    """Runs a function as one program, compiled with few optimizations."""
    with quick_compile():
        return jax.jit(function)(*arguments)


def results(function, packed, params, inputs):
    """Outputs and gradients of a cell and of the packed cell."""

    def run(params, *inputs):
        return packed.run(packed.pack(params), *inputs)

    return [_outputs_and_gradients(each, params, inputs) for each in (function, run)]


def _outputs_and_gradients(function, params, inputs):
    def loss(params, rows):
        outputs = jax.vmap(function, in_axes=(None, *([0] * len(inputs))))(
            params, *rows
        )
        terms = [
            jnp.sum(jnp.sin(leaf.astype(jnp.float32)))
            for leaf in jax.tree.leaves(outputs)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
        ]
        return sum(terms, jnp.float32(0)), outputs

    gradients = jax.grad(loss, argnums=(0, 1), has_aux=True, allow_int=True)
    return gradients(params, [_rows(each) for each in inputs])


def _rows(tree):
    """Stacks each array twice; the two rows of floating arrays differ."""

    def two(x):
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.stack([x, (x * 0.3 - 0.1).astype(x.dtype) if is_float else x])

    return jax.tree.map(two, tree)


def assert_equal(found, expected, *, rtol, atol, name=""):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, two in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        assert (one.shape, one.dtype) == (two.shape, two.dtype), name
        if one.dtype != jax.dtypes.float0:
            one, two = (np.asarray(x, np.float64) for x in (one, two))
            np.testing.assert_allclose(one, two, rtol=rtol, atol=atol, err_msg=name)


def count_products(packed: PackedCell, params, *inputs) -> int:
    """Counts the products in the compiled HLO of a packed cell, run on several rows."""
    rows = [jax.tree.map(lambda x: jnp.stack([x] * 4), each) for each in inputs]
    run = jax.jit(jax.vmap(packed.run, in_axes=(None, *([0] * len(inputs)))))
    text = run.lower(packed.pack(params), *rows).compile().as_text()
    return len(re.findall(r"= \S+ dot\(|custom_call_target=\"\S*(?:gemm|matmul)", text))
