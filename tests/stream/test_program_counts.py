"""Tests how many programs minibatches of random sizes need, without compiling."""

import random

import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch import planning
from edbatch.target import choose_target

MOST = 4  # maximum number of programs
ROWS = 64  # instances in the largest minibatch
PARAMS = {
    "leaf": np.ones((20, 16), np.float32),
    "combine": [{"W": np.eye(16 + k, 16, dtype=np.float32)} for k in range(3)],
}


@eb.cell
def leaf(table, word):
    return jnp.tanh(table[word])


@eb.cell
def combine(params, left, right):
    return jnp.tanh(params["W"] @ left + params["W"] @ right)[:16]


def encode(params, tree):
    if isinstance(tree, int):
        return leaf(params["leaf"], tree)
    operation, left, right = tree
    own = params["combine"][operation]
    return combine(own, encode(params, left), encode(params, right))


def random_tree(generator, depth, operations):
    if depth == 0 or generator.random() < 0.25:
        return generator.randrange(20)
    return (
        generator.randrange(operations),
        random_tree(generator, depth - 1, operations),
        random_tree(generator, depth - 1, operations),
    )


@pytest.mark.parametrize("pad_to", [planning.ANY, ROWS])
@pytest.mark.parametrize(
    ("seed", "depth", "operations"),
    [(0, 5, 3), (1, 6, 1), (0, 6, 2), (1, 6, 3), (2, 4, 2), (3, 3, 3)],
)
def test_random_sizes_have_few_programs(seed, depth, operations, pad_to):
    """Several types have the same arity, so that a small minibatch lacks some."""
    generator = random.Random(seed)
    trees = [random_tree(generator, depth, operations) for _ in range(200)]
    batched = eb.batch(encode, params=PARAMS)
    state = batched.states.checked(batched.states.of_params(PARAMS), trees)
    target, programs = choose_target(PARAMS), set()
    for _ in range(150):
        some = generator.sample(trees, generator.randint(1, ROWS))
        plan = batched._plan(state, some, target, pad_to)
        programs.add((plan.shape.program, len(plan.stream), str(plan.static_sizes())))
    assert len(programs) == len(state.planning.buckets) <= MOST
