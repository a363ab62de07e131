"""The cells of the random models in `fuzz_models`."""

import jax
import jax.numpy as jnp
from input_programs import clipped
from jax import lax

import edbatch as eb


@eb.cell
def leaf(params, x):
    return jnp.tanh(params["mix"]["a"] @ x + params["bias"])


@eb.cell
def embed(params, index):
    return params["table"][index]


@eb.cell
def start(params):
    return jnp.tanh(params["mix"]["b"][0])


@eb.cell
def layer(params, x):
    return jnp.tanh(params["w"] @ x + x)


@eb.cell
def expert(params, index, x):
    return jnp.tanh(params["stack"][index] @ x)


@eb.cell
def join(mix, left, right):
    return jnp.tanh(mix["a"] @ left + mix["b"] @ right)


@eb.cell
def step(params, x, state):
    """Similar to an LSTM: products of an external input and of a state."""
    inner = params["mix"]["a"] @ x + params["mix"]["b"] @ state
    gate = jax.nn.sigmoid(params["mix"]["b"] @ x + params["mix"]["a"] @ state)
    return gate * jnp.tanh(inner), inner[:2]


@eb.cell
def only(params, x):
    return params["only"] * x + 0.1


@eb.cell
def scale(x, by):
    return x * by.astype(x.dtype) if hasattr(by, "astype") else x * by


@eb.cell
def outer(left, right):
    return left[:2, None] * right[None, :]


@eb.cell
def apply_matrix(matrix, x):
    return jnp.tanh(matrix @ x)


@eb.cell
def split(params, x):
    inner = params["mix"]["b"] @ x
    return {"wide": jnp.sin(inner), "narrow": inner[:2] * 0.5, "sum": inner.sum()}


@eb.cell
def widen(project, narrow, x):
    return jnp.tanh(narrow @ project + x)


@eb.cell
def resize(project, x):
    return x @ project


@eb.cell(padded=("words",))
def bag(params, words, mask):
    return jnp.where(mask[:, None], params["table"][words], 0).sum(0)


@eb.cell(static=("power",))
def raise_to(x, power):
    return x**power * 0.5


@eb.cell
def drop(x, rng):
    return jnp.where(jax.random.bernoulli(rng, 0.7, x.shape), x / 0.7, 0)


@eb.cell(padded=("vectors",))
def noisy_list(vectors, mask, rng):
    return jnp.where(mask, jax.random.uniform(rng, mask.shape), 0) @ vectors


@eb.cell
def normalize(x):
    return x / jnp.linalg.norm(x)


@eb.cell
def root(x):
    return jnp.sqrt(jnp.abs(x))


@eb.cell
def logarithm(params, x):
    return jnp.log(x * x) * params["only"] * 0.1


@eb.cell
def scanned(params, x):
    def body(h, w):
        h = jnp.tanh(h * w + params["bias"])
        return h, h[:2]

    return lax.scan(body, x, params["mix"]["a"])


@eb.cell
def chosen(params, x):
    return lax.cond(
        x.sum() > 0.0173, lambda x: params["mix"]["a"] @ x, lambda x: 2 * x, x
    )


@eb.cell
def settled(params, x):
    """A `while_loop` whose inputs pass through `stop_gradient`."""
    weights = lax.stop_gradient(params["mix"]["a"])
    y = lax.stop_gradient(params["mix"]["b"] @ x)
    y = lax.while_loop(
        lambda y: jnp.abs(y).sum() > 1.0, lambda y: 0.5 * jnp.tanh(weights @ y), y
    )
    return y + params["mix"]["b"] @ x


@eb.cell
def ruled(params, x):
    return jnp.tanh(clipped(params["mix"]["b"] @ x))


@eb.cell
def ruled_parameters(params, x):
    """A `custom_vjp` rule on an operand times a parameter of another shape."""
    return clipped(x * params["only"]) + jax.nn.relu(x)


@eb.cell
def low(params, x):
    return (params["low"] @ x.astype(jnp.bfloat16)) * jnp.bfloat16(0.5)


@eb.cell
def low16(x):
    return jnp.tanh(x.astype(jnp.float16))


@eb.cell
def high(x):
    return jnp.sin(x.astype(jnp.float32))


@eb.cell
def index_of(x):
    return jnp.argmax(jnp.nan_to_num(x)).astype(jnp.int32)


@eb.cell
def stopped(x, y):
    return lax.stop_gradient(x) * y


@eb.cell
def nested(params, x):
    """A cell that calls cells."""
    return jnp.tanh(leaf(params, x) + raise_to(x, 2))


@eb.cell
def plain(x):
    return jnp.where(x > 0.0171, x, 0.1 * x)
