"""A small tree model for tests: trees are nested pairs of word numbers."""

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb

HIDDEN = 4


@eb.cell
def leaf(params, word):
    hidden = jnp.tanh(params["table"][word] @ params["leaf"])
    return hidden, hidden * 0.5


@eb.cell
def join(weights, left, right):
    hidden = jnp.tanh(jnp.concatenate([left[0], right[0]]) @ weights)
    return hidden, hidden * left[1] + right[1]


def encode(params, tree):
    if isinstance(tree, int):
        return leaf(params, tree)
    return join(params["join"], *(encode(params, each) for each in tree))


def all_states(params, tree):
    """Returns the hidden vectors of all nodes, in post-order."""
    found = []

    def visit(node):
        if isinstance(node, int):
            state = leaf(params, node)
        else:
            state = join(params["join"], *map(visit, node))
        found.append(state[0])
        return state

    visit(tree)
    return found


def make_params(hidden=HIDDEN, seed=0):
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "table": jax.random.normal(keys[0], (10, hidden)),
        "leaf": jax.random.normal(keys[1], (hidden, hidden)) / hidden**0.5,
        "join": jax.random.normal(keys[2], (2 * hidden, hidden)) / hidden**0.5,
    }


def sample_tree(rng, leaves):
    if leaves == 1:
        return int(rng.integers(10))
    left = int(rng.integers(1, leaves))
    return (sample_tree(rng, left), sample_tree(rng, leaves - left))


def sample_trees(seed, count, leaves=12):
    rng = np.random.default_rng(seed)
    return [sample_tree(rng, int(rng.integers(1, leaves + 1))) for _ in range(count)]


def assert_equal(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
