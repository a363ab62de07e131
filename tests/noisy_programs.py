"""Random programs some of whose cells draw random numbers."""

import jax
import jax.numpy as jnp
from programs import interpret, sample_program, word

import edbatch as eb


@eb.cell
def drop(vector, rng):
    kept = jax.random.bernoulli(rng, 0.7, vector.shape)
    return jnp.where(kept, vector / 0.7, 0)


@eb.cell
def noisy_join(mix, left, right, *, rng):
    """Draws twice, one of them inside a function that the gradient recomputes."""
    own, inner = jax.random.split(rng)

    @jax.checkpoint
    def rest(mix, vector, key):
        return jnp.tanh(mix["b"] @ vector + jax.random.normal(key, vector.shape))

    weights = mix["a"] * jax.random.bernoulli(own, 0.5, mix["a"].shape)
    return rest(mix, weights @ left, inner) + right


@eb.cell(padded=("vectors",))
def noisy_total(vectors, mask, rng):
    weights = jax.random.uniform(rng, mask.shape)
    return jnp.where(mask, weights, 0) @ vectors


@eb.cell(static=("scale",))
def jitter(vector, scale, rng):
    return vector + scale * jax.random.normal(rng, vector.shape)


@eb.cell
def any_word(rng):
    return jax.random.randint(rng, (), 0, 7)


@eb.cell
def maybe_drop(vector, rng=None):
    return vector if rng is None else drop.function(vector, rng)


def _pick(vectors, k):
    return vectors[k % len(vectors)]


NOISY = {
    "drop": lambda params, vectors, n: drop(_pick(vectors, n[0])),
    "noisy_join": lambda params, vectors, n: noisy_join(
        params["mix"], _pick(vectors, n[0]), _pick(vectors, n[-1])
    ),
    "noisy_total": lambda params, vectors, n: noisy_total(
        [_pick(vectors, k) for k in n]
    ),
    "jitter": lambda params, vectors, n: jitter(_pick(vectors, n[0]), 0.5),
    "any_word": lambda params, vectors, n: word(params, any_word()),
    "maybe_drop": lambda params, vectors, n: maybe_drop(_pick(vectors, n[0])),
}


def sample_noisy(rng, length):
    """Draws a program most of whose operations draw random numbers."""
    return sample_program(rng, length, ("join", *NOISY))


def interpret_noisy(params, program):
    """The model."""
    return interpret(params, program, NOISY)
