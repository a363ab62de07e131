"""Measures the peak: the speed of the fastest matrix product on this machine."""

import time
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

from edbatch.cell.flops import Product, type_products
from edbatch.graph import DataflowGraph

_SQUARES = ((1, 512, 512, 512), (1, 1024, 1024, 1024), (1, 2048, 2048, 2048))
_ROWS = (64, 512, 2048)
_BUDGET_S = 0.05  # per shape
_LEAST_RUNS = 3
_LARGEST = 1 << 35  # operations; larger products take long and are no faster


def peak_gflops(graph: DataflowGraph, seed: int) -> float:
    """Measures matrix products and returns the speed of the fastest.

    Args:
        graph: A minibatch. The products of its cells, at several numbers of rows, are
            measured in addition to square products.
        seed: Seed of the matrices.

    Returns:
        10^9 float32 operations per second.
    """
    return max(measure_product(shape, seed) for shape in _shapes(graph))


def _shapes(graph: DataflowGraph) -> Iterable[Product]:
    shapes = set(_SQUARES)
    for node_type in graph.types.types:
        found = type_products(graph.types, node_type, packing=True)
        for (batch, m, n, k), _ in found:
            shapes |= {(1, rows * batch * m, n, k) for rows in _ROWS}
    return [s for s in sorted(shapes) if 2 * s[0] * s[1] * s[2] * s[3] <= _LARGEST]


def measure_product(shape: Product, seed: int) -> float:
    """Measures one product, taking the fastest of several runs.

    Args:
        shape: The product's batch size and dimensions, ``(batch, m, n, k)``.
        seed: Seed of the matrices.

    Returns:
        10^9 float32 operations per second.
    """
    batch, m, n, k = shape
    rng = np.random.default_rng(seed)
    left, right = (
        jax.device_put(rng.standard_normal(each, np.float32))
        for each in ((batch, m, k), (batch, k, n))
    )
    multiply = jax.jit(jnp.matmul)
    multiply(left, right).block_until_ready()
    times = [float("inf")]
    while len(times) <= _LEAST_RUNS or sum(times[1:]) < _BUDGET_S:
        start = time.perf_counter()
        multiply(left, right).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * batch * m * n * k / min(times) / 1e9
