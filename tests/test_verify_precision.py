"""`eb.verify` allows errors of the lowest precision that a number passed through."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.rounding import coarsest_roundings

pytestmark = pytest.mark.usefixtures("quick_compiles")

SIZES = eb.Sizes(widths=(4,))
LOW = [jnp.bfloat16, jnp.float16]


def make_model(low):
    """A tree in low precision with a float32 head, and a float32 branch."""

    @eb.cell
    def leaf(params, word):
        return params["table"][word].astype(low)

    @eb.cell
    def join(params, left, right):
        return jnp.tanh(params["join"].astype(low) @ jnp.concatenate([left, right]))

    @eb.cell
    def head(params, state):
        return params["head"] @ state.astype(jnp.float32)

    @eb.cell
    def exact_leaf(params, word):
        return params["table"][word]

    @eb.cell
    def exact(params, left, right):
        return jnp.tanh(params["exact"] @ jnp.concatenate([left, right]))

    def walk(tree, params, on_leaf, on_pair):
        if isinstance(tree, int):
            return on_leaf(params, tree)
        children = [walk(each, params, on_leaf, on_pair) for each in tree]
        return on_pair(params, *children)

    def model(params, tree):
        state = walk(tree, params, leaf, join)
        own = walk(tree, params, exact_leaf, exact)
        return {"exact": own, "head": head(params, state), "state": state}

    return model


def make_params(seed=0, size=16):
    random = np.random.default_rng(seed)

    def normal(*shape):
        values = random.standard_normal(shape) / np.sqrt(shape[-1])
        return jnp.asarray(values, jnp.float32)

    return {
        "table": normal(20, size) * 4,
        "join": normal(size, 2 * size) * 2,
        "exact": normal(size, 2 * size) * 2,
        "head": normal(3, size) * 4,
    }


def sample_trees(seed, count, leaves=12):
    random = np.random.default_rng(seed)

    def sample(n):
        if n == 1:
            return int(random.integers(20))
        cut = int(random.integers(1, n))
        return sample(cut), sample(n - cut)

    return [sample(leaves) for _ in range(count)]


class Corrupt:
    """A batched function with one result, or its cotangent, changed."""

    def __init__(self, batched, name, change):
        self._batched, self._name, self._change = batched, name, change
        self.model = batched.model

    def __getattr__(self, name):
        return getattr(self._batched, name)

    def apply(self, params, plan, **options):
        result = self._batched.apply(params, plan, **options)
        return result | {self._name: self._change(result[self._name])}


@cache
def make_batched(low):
    return eb.batch(make_model(low), sizes=SIZES)


def check(low, name=None, change=None):
    batched = make_batched(low)
    if name is not None:
        batched = Corrupt(batched, name, change)
    return eb.verify(batched, make_params(), sample_trees(0, 4))


@jax.custom_vjp
def stretch(x):
    return x


stretch.defvjp(lambda x: (x, None), lambda _, bar: (bar * 1.002,))


@pytest.mark.parametrize("low", LOW)
def test_mixed_precision_raises_no_alarm(low):
    """The head and all gradients are float32, but were computed through `low`."""
    found = check(low)
    assert found.max_gradient_error > 512 * jnp.finfo(jnp.float32).eps


@pytest.mark.parametrize("low", LOW)
def test_an_error_where_no_low_precision_is_is_found(low):
    with pytest.raises(eb.VerificationError, match=r"\['exact'\]: .* \(in float32\)"):
        check(low, "exact", lambda x: x + 2e-4)


@pytest.mark.parametrize("low", LOW)
def test_a_gradient_error_where_no_low_precision_is_is_found(low):
    text = r"gradient of params\['exact'\]: .* \(in float32\)"
    with pytest.raises(eb.VerificationError, match=text):
        check(low, "exact", stretch)


@pytest.mark.parametrize("low", LOW)
def test_a_large_error_is_found_in_low_precision(low):
    """512 rounding errors of bfloat16 would be four times the numbers themselves."""
    name = jnp.dtype(low).name
    with pytest.raises(eb.VerificationError, match=rf"\['head'\]: .* \(in {name}\)"):
        check(low, "head", lambda x: -x)


def test_a_wrong_dtype_is_found():
    wrong = Corrupt(
        make_batched(jnp.bfloat16), "state", lambda x: x.astype(jnp.float32)
    )
    text = r"\['state'\]: .* has dtype float32 but the model returns bfloat16"
    with pytest.raises(eb.VerificationError, match=text):
        eb.verify(wrong, make_params(), sample_trees(0, 2))


def test_low_precision_inside_of_a_cell():
    """The cell's inputs and outputs do not show its low precision."""

    @eb.cell
    def step(params, x):
        low = jax.tree.map(lambda each: each.astype(jnp.bfloat16), (params["w"], x))
        return jnp.tanh(low[0] @ low[1]).astype(jnp.float32)

    @eb.cell
    def exact(params, x):
        return jnp.tanh(params["v"] @ x)

    def model(params, x):
        own = other = x
        for _ in range(6):
            own, other = step(params, own), exact(params, other)
        return {"low": own, "exact": other}

    random = np.random.default_rng(0)
    params = {k: random.standard_normal((16, 16)).astype(np.float32) for k in "wv"}
    instances = list(random.standard_normal((4, 16)).astype(np.float32))
    batched = eb.batch(model, sizes=SIZES)
    eb.verify(batched, params, instances)
    wrong = Corrupt(batched, "low", lambda x: x + 1e-3)
    eb.verify(wrong, params, instances, gradients=False)
    wrong = Corrupt(batched, "exact", lambda x: x + 1e-3)
    with pytest.raises(eb.VerificationError, match=r"\['exact'\]: .*\(in float32\)"):
        eb.verify(wrong, params, instances)


def low(x):
    return jnp.sin(x.astype(jnp.bfloat16)).astype(x.dtype)


def in_scan(x, y):
    def body(carry, each):
        _, second, third = carry
        return (second, low(third), third + each), each

    (first, second, third), ys = jax.lax.scan(body, (x, x, x), y)
    return first, second, third, ys


def in_while(x, y):
    def body(carry):
        _, second, third = carry
        return second, low(third), third + 1

    return jax.lax.while_loop(lambda carry: carry[2] < 3, body, (x, x, y[0]))


@jax.custom_jvp
def with_rule(x, y):
    return low(x), y * 2


with_rule.defjvp(lambda primals, tangents: (with_rule(*primals), tangents))


FUNCTIONS = {
    "movement": (
        lambda x, y: (
            jnp.concatenate([y, y])[::2].astype(jnp.float32),
            y.astype(jnp.bfloat16).astype(jnp.float32) * 2,
        ),
        ["", "bfloat16"],
    ),
    "jit": (lambda x, y: jax.jit(lambda a, b: (b, low(a)))(x, y), ["", "bfloat16"]),
    "integers": (
        lambda x, y: (low(x) > 0, jnp.argmax(y), jnp.where(low(x) > 0, y, -y)),
        ["bfloat16", "", "bfloat16"],
    ),
    "scan": (in_scan, ["bfloat16", "bfloat16", "float32", ""]),
    "while": (in_while, ["bfloat16", "bfloat16", "float32"]),
    "while condition": (
        lambda x, y: jax.lax.while_loop(lambda c: low(c) < 3, lambda c: c * 2, x),
        ["bfloat16"],
    ),
    "cond": (
        lambda x, y: jax.lax.cond(y[0] > 0, lambda a: (low(a), a), lambda a: (a, a), x),
        ["bfloat16", ""],
    ),
    "cond on": (
        lambda x, y: jax.lax.cond(low(x) > 0, lambda a: a, lambda a: -a, y),
        ["bfloat16"],
    ),
    "rule": (with_rule, ["bfloat16", "float32"]),
    "remat": (
        lambda x, y: (jax.checkpoint(low)(x), jnp.sin(y)),
        ["bfloat16", "float32"],
    ),
    "reduce_precision": (
        lambda x, y: jax.lax.reduce_precision(x, 8, 7),
        ["7 bits"],
    ),
    "gradient": (
        lambda x, y: jax.grad(
            lambda a, b, c: low(a) * b + jnp.sin(c), argnums=(0, 1, 2)
        )(x, y[0], y[1]),
        ["bfloat16", "bfloat16", "float32"],
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_way_to_each_output(name):
    function, expected = FUNCTIONS[name]
    found = coarsest_roundings(function, jnp.float32(0.3), jnp.ones(3))
    assert [each.dtype for each in found] == expected


@jax.custom_vjp
def standing_still(table):
    return table


standing_still.defvjp(
    lambda table: (table, None), lambda _, bar: (jnp.minimum(bar, 256),)
)


def test_a_sum_that_stands_still_is_found_where_parameters_are_of_half_precision():
    """Sums of both signs stay below the value at which a bfloat16 sum stops growing."""

    @eb.cell
    def look_up(params, word):
        return params["table"][word].astype(jnp.float32)

    class Standing(Corrupt):
        def apply(self, params, plan, **options):
            own = {"table": standing_still(params["table"])}
            return self._batched.apply(own, plan, **options)

    params = {"table": jnp.zeros((20, 4), jnp.bfloat16)}
    batched = eb.batch(look_up, sizes=SIZES)
    words = [5] * 600
    assert eb.verify(batched, params, words).max_gradient_error < 0.01
    with pytest.raises(eb.VerificationError, match=r"gradient of params\['table'\]"):
        eb.verify(Standing(batched, None, None), params, words)


def test_a_model_that_stands_still_by_itself_raises_no_alarm():
    @eb.cell
    def look_up(params, word):
        return params["table"][word]

    @eb.cell
    def total(vectors):
        return sum(each.astype(jnp.float32) for each in vectors)

    def model(params, words):
        return total([look_up(params, word) for word in words])

    params = {"table": jnp.zeros((20, 4), jnp.bfloat16)}
    words = [5] * 600
    batched = eb.batch(model, sizes=SIZES)
    grad = jax.grad(lambda own: model(own, words).sum())(params)["table"]
    assert float(grad[5, 0]) < 300
    eb.verify(batched, params, [words])
