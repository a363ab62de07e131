"""Random programs some of whose cells mix external inputs with other nodes' values."""

import jax
import jax.numpy as jnp
import numpy as np
from programs import interpret, sample_program

import edbatch as eb


@eb.cell
def step(params, word, state):
    """Adds a product of the input to a product of the state, as in an LSTM."""
    mix = params["mix"]
    return jnp.tanh(params["table"][word] @ mix["a"] + state @ mix["b"])


@eb.cell
def gated(params, numbers, word, state):
    """A nonlinear function of the input's product, which is read twice."""
    gate = jax.nn.sigmoid(params["mix"]["a"] @ numbers)
    kept = gate * state + (1 - gate) * params["table"][word]
    return kept, gate[:2]


@eb.cell(padded=("words",))
def read_list(params, words, state, mask):
    """Attention over a list of inputs, some of which are missing."""
    keys = params["table"][words] @ params["mix"]["b"]
    scores = jnp.where(mask, keys @ state, -jnp.inf)
    return jax.nn.softmax(scores) @ jnp.tanh(keys)


@eb.cell(padded=("vectors",))
def gather_list(params, numbers, vectors, mask):
    """The mask covers operands, so the masked scores cannot be hoisted."""
    query = params["mix"]["a"] @ numbers
    scores = jnp.where(mask, vectors @ query, -jnp.inf)
    return jax.nn.softmax(scores) @ vectors


@eb.cell
def half(params, numbers, state):
    """Products in two dtypes, one under `relu`, which has a custom gradient rule."""
    low = (params["mix"]["a"] @ numbers).astype(jnp.bfloat16)
    high = jax.nn.relu(params["other"][0]["b"] @ numbers)
    return jnp.tanh(low.astype(jnp.float32) + high + state) * high.sum()


@jax.custom_vjp
def clipped(x):
    return x


def _clipped(x):
    return x, None


def _clip(_, bar):
    return (jnp.clip(bar, -0.1, 0.1),)


clipped.defvjp(_clipped, _clip)


@eb.cell
def clip(params, word, state):
    """The custom gradient differs from the function's derivative."""
    return jnp.tanh(clipped(params["mix"]["b"] @ params["table"][word]) * state)


def _numbers(n):
    return np.float32([n[0] % 5, 0.5, -(n[-1] % 3)])


def _pick(vectors, k):
    return vectors[k % len(vectors)]


MORE = {
    "step": lambda params, vectors, n: step(params, n[0] % 7, _pick(vectors, n[-1])),
    "gated": lambda params, vectors, n: gated(
        params, _numbers(n), n[0] % 7, _pick(vectors, n[-1])
    )[0],
    "read_list": lambda params, vectors, n: read_list(
        params, [k % 7 for k in n], _pick(vectors, n[0])
    ),
    "gather_list": lambda params, vectors, n: gather_list(
        params, _numbers(n), [_pick(vectors, k) for k in n]
    ),
    "half": lambda params, vectors, n: half(params, _numbers(n), _pick(vectors, n[-1])),
    "clip": lambda params, vectors, n: clip(params, n[0] % 7, _pick(vectors, n[-1])),
}
OPERATIONS = (*MORE, "join", "total", "split", "widen")
HOISTED = {"step", "gated", "read_list", "gather_list", "half", "clip"}


def input_program(rng, length):
    return sample_program(rng, length, OPERATIONS)


def run_inputs(params, program):
    return interpret(params, program, MORE)
