"""A model of trees whose words and labels are rows of tables."""

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb
from edbatch import sparse

VOCABULARY, WIDTH = 37, 6


@eb.cell
def leaf(params, word):
    return jnp.tanh(params["embedding"][word] @ params["W"])


@eb.cell
def bag(params, words):
    """Reads several rows at once; negative indices count from the end."""
    return jnp.tanh(params["embedding"][words]).sum(0) + params["labels"][words[0] % 5]


@eb.cell
def join(params, left, right):
    return jnp.tanh(params["W"] @ (left + 2 * right))


def encode(params, tree):
    if isinstance(tree, (int, np.integer)):
        return leaf(params, np.int32(tree))
    if isinstance(tree, list):
        return bag(params, np.array(tree, np.int32))
    return join(params, *(encode(params, child) for child in tree))


def new_params(seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return {
        "embedding": normal(VOCABULARY, WIDTH),
        "labels": normal(5, 1)[:, 0],
        "W": normal(WIDTH, WIDTH) / WIDTH,
    }


def random_tree(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.4:
            return rng.integers(-VOCABULARY, VOCABULARY, 3).tolist()
        return int(rng.integers(VOCABULARY))
    return random_tree(rng, depth - 1), random_tree(rng, depth - 1)


def sample(seed, count):
    rng = np.random.default_rng(seed)
    return [random_tree(rng, 4) for _ in range(count)]


def loss_of(batched):
    def loss(params, plan):
        return jnp.sum(jnp.sin(batched.apply(params, plan)))

    return loss


def to_dense(gradient):
    return jax.tree.map(
        lambda g: g.to_dense() if isinstance(g, sparse.SparseRows) else g,
        gradient,
        is_leaf=lambda g: isinstance(g, sparse.SparseRows),
    )


def assert_close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
