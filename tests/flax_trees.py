"""A tree encoder in linen and in nnx with methods as cells, and small inputs."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

import edbatch as eb

SIZES = eb.Sizes(widths=(2,))
KEY = jax.random.key(5)
SEQUENCES = [np.float32(np.random.default_rng(n).normal(size=(n, 3))) for n in (2, 1)]
WORDS, WIDTH = 6, 4
TREES = [((0, 1), 2), 3, ((4, 1), (0, (5, 2)))]


def vectors(count=2, size=4):
    return list(np.random.default_rng(0).normal(size=(count, size)).astype(np.float32))


class LinenTree(nn.Module):
    rate: float = 0.4

    def setup(self):
        self.embed = nn.Embed(WORDS, WIDTH)
        self.lstm = nn.LSTMCell(WIDTH)
        self.drop = nn.Dropout(self.rate)

    def leaf(self, word, deterministic: bool):
        zero = jnp.zeros(WIDTH)
        x = self.drop(self.embed(word), deterministic=deterministic)
        return self.lstm((zero, zero), x)[0]

    def compose(self, left, right, deterministic: bool):
        x = self.drop(right[1], deterministic=deterministic)
        return self.lstm(left, x)[0]

    def __call__(self, word):
        state = self.leaf(word, True)
        return self.compose(state, state, True)


class NnxTree(nnx.Module):
    def __init__(self, rngs, rate=0.4):
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.lstm = nnx.LSTMCell(WIDTH, WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)

    def leaf(self, word):
        zero = jnp.zeros(WIDTH)
        return self.lstm((zero, zero), self.drop(self.embed(word)))[0]

    def compose(self, left, right):
        return self.lstm(left, self.drop(right[1]))[0]


def tree_model(leaf, compose):
    """The tree model, given its two cells."""

    def encode(params, tree):
        if isinstance(tree, int):
            return leaf(params, tree)
        return compose(params, *(encode(params, each) for each in tree))

    return encode
