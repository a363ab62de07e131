"""Random cells: JAX functions of parameters and inputs, for one instance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

SIZES = (2, 3, 4)


@jax.custom_vjp
def doubled_gradient(x: Array) -> Array:
    """The identity, with a different gradient by its `custom_vjp` rule."""
    return x


doubled_gradient.defvjp(lambda x: (x, None), lambda _, bar: (2 * bar,))


@jax.custom_jvp
def halved_gradient(x: Array) -> Array:
    return jnp.tanh(x)


@halved_gradient.defjvp
def _halved(primals: Any, tangents: Any) -> Any:
    return jnp.tanh(primals[0]), 0.5 * tangents[0]


@jax.jit
def nested(x: Array, W: Array, b: Array) -> Array:
    """An affine map inside a jitted function."""
    return jax.jit(jnp.matmul)(x, W) + b


CHAINS: tuple[Callable[[Array], Array], ...] = (
    jnp.tanh,
    jax.nn.sigmoid,
    # Shifted from 0, where rounding decides on which side of the kink an input is.
    lambda x: jax.nn.relu(x + 0.0317),
    jax.nn.silu,
    jax.nn.softplus,
    doubled_gradient,
    halved_gradient,
    jax.checkpoint(jnp.sin),
    lambda x: 1 - x,
    lambda x: x * 0.5 + x,
    lambda x: -x,
    lambda x: jnp.where(x > 0.0171, x, 0.1 * x),
)


@dataclass(frozen=True)
class RandomCell:
    """A cell and arguments for it."""

    function: Callable[..., Any]
    params: Any
    inputs: tuple[Any, ...]


def random_cell(seed: int, *, casts: bool = False, length: int = 12) -> RandomCell:
    """Makes a cell.

    Args:
        seed: Seed of all random choices.
        casts: Whether to cast to bfloat16 and back, with large rounding errors.
        length: Number of steps of its program.

    Returns:
        The cell.
    """
    rng = np.random.default_rng(seed)
    dtype = jnp.zeros(()).dtype if not jax.config.jax_enable_x64 else jnp.float64

    def normal(*shape: int) -> Array:
        return jnp.asarray(rng.normal(size=shape) * 0.7, dtype)

    inputs: list[Any] = [
        normal(int(rng.choice(SIZES))) for _ in range(rng.integers(1, 4))
    ]
    inputs.append(normal(2, int(rng.choice(SIZES))))
    inputs.append(jnp.asarray(rng.integers(0, 3), jnp.int32))
    params = {
        f"W{m}{n}{k}": normal(m, n) for m in SIZES for n in SIZES for k in range(5)
    }
    params |= {f"b{n}{k}": normal(n) for n in SIZES for k in range(3)}
    params["table"] = normal(3, 4)
    params["counts"] = jnp.arange(3)
    constant = normal(3, 3)
    plan = rng.integers(0, 2**31, size=length)

    def function(params: Any, *inputs: Any) -> Any:
        program = _Program(params, constant, casts)
        program.values = [params["table"][inputs[-1]], *inputs[:-1]]
        for seed in plan:
            program.step(np.random.default_rng(seed))
        return program.output(np.random.default_rng(seed_of_output), inputs)

    seed_of_output = int(rng.integers(2**31))
    return RandomCell(function, params, tuple(inputs))


class _Program:
    def __init__(self, params: Any, constant: Array, casts: bool) -> None:
        self.params = params
        self.constant = constant
        self.casts = casts
        self.values: list[Any] = []

    def step(self, rng: np.random.Generator) -> None:
        steps = [
            *(self.gates,) * 4,
            *(self.sum_of_products,) * 4,
            *(self.chain,) * 3,
            self.combine,
            self.matrix,
            self.packed_gates,
            self.normalized,
            self.control,
            self.small_things,
            self.towers,
        ]
        if self.casts:
            steps.append(self.cast)
        steps[rng.integers(len(steps))](rng)

    def vector(self, rng: np.random.Generator) -> Any:
        found = [each for each in self.values if each.ndim == 1 and len(each) in SIZES]
        return found[rng.integers(len(found))]

    def weight(self, rng: np.random.Generator, m: int, n: int) -> Array:
        if m == n == 3 and rng.random() < 0.2:
            return self.constant
        k = int(rng.integers(5))
        kind = rng.integers(4)
        if kind == 0:
            return self.params[f"W{n}{m}{k}"].T
        if kind == 1:
            return self.params[f"W{m}4{k}"][:, :n]
        if kind == 2:
            return self.params[f"W{m}{n}{k}"] * 0.5
        return self.params[f"W{m}{n}{k}"]

    def product(self, rng: np.random.Generator, x: Any, n: int) -> Array:
        W = self.weight(rng, len(x), n).astype(x.dtype)
        kind = rng.integers(6)
        if kind == 0:
            return W.T @ x
        if kind == 1:
            return jnp.einsum("i,ij->j", x, W)
        if kind == 2:
            return jnp.dot(x, W, precision="highest")
        if kind == 3:
            return nested(x, W, jnp.zeros(n, x.dtype))
        return x @ W

    def bias(self, rng: np.random.Generator, n: int, dtype: Any) -> Any:
        kind = rng.integers(4)
        if kind == 0:
            return self.params[f"b{n}{rng.integers(3)}"].astype(dtype)
        if kind == 1:
            return (self.params[f"b{n}0"] + self.params[f"b{n}1"]).astype(dtype)
        if kind == 2:
            return jnp.asarray(1, dtype)
        return jnp.zeros(n, dtype)

    def gates(self, rng: np.random.Generator) -> None:
        x, n = self.vector(rng), int(rng.choice(SIZES))
        for _ in range(rng.integers(1, 5)):
            y = self.product(rng, x, n)
            self.values.append(y + self.bias(rng, n, y.dtype))

    def sum_of_products(self, rng: np.random.Generator) -> None:
        xs = [self.vector(rng) for _ in range(rng.integers(2, 4))]
        n = int(rng.choice(SIZES))
        for _ in range(rng.integers(1, 5)):
            total = self.bias(rng, n, xs[0].dtype)
            for x in xs:
                y = self.product(rng, x, n).astype(xs[0].dtype)
                total = total + y if rng.random() < 0.8 else total - y
            self.values.append(CHAINS[rng.integers(len(CHAINS))](total))

    def chain(self, rng: np.random.Generator) -> None:
        chain = CHAINS[rng.integers(len(CHAINS))]
        for _ in range(rng.integers(1, 4)):
            self.values.append(chain(self.values[rng.integers(len(self.values))]))

    def combine(self, rng: np.random.Generator) -> None:
        x = self.vector(rng)
        same = [each for each in self.values if each.shape == x.shape]
        y = same[rng.integers(len(same))].astype(x.dtype)
        found = [
            x * y,
            x + y,
            x - y,
            jnp.concatenate([x, y])[: len(x)],
            jnp.maximum(x, y + 0.0119),
        ]
        self.values.append(found[rng.integers(len(found))])

    def matrix(self, rng: np.random.Generator) -> None:
        found = [each for each in self.values if each.ndim == 2]
        x = found[rng.integers(len(found))]
        n = int(rng.choice(SIZES))
        kind = rng.integers(4)
        if kind == 0:
            for _ in range(rng.integers(1, 4)):
                y = x @ self.weight(rng, x.shape[1], n).astype(x.dtype)
                bias = jnp.broadcast_to(self.bias(rng, n, y.dtype), (n,))
                self.values.append(y + bias[None])
        elif kind == 1:
            W = [self.weight(rng, x.shape[0], n).astype(x.dtype) for _ in range(2)]
            self.values += [each.T @ x for each in W]
        elif kind == 2:
            W = [self.weight(rng, x.shape[1], n).astype(x.dtype) for _ in range(2)]
            y = jnp.tanh(x)
            self.values += [x @ W[0] + y @ W[1], jnp.tensordot(W[0], x, ((0,), (1,)))]
        else:
            self.values += [jnp.sum(x, axis=0), x[0], x[1]]

    def packed_gates(self, rng: np.random.Generator) -> None:
        x, y, n = self.vector(rng), self.vector(rng), 2
        y = y.astype(x.dtype)
        W = self.weight(rng, len(x), 4).astype(x.dtype)
        U = self.weight(rng, len(y), 4).astype(x.dtype)
        a, b = jnp.split(x @ W + self.bias(rng, 4, x.dtype), 2)
        c, d = jnp.split(y @ U, 2)
        self.values += [a + c, b * d if rng.random() < 0.5 else b + d]
        assert len(a) == n

    def normalized(self, rng: np.random.Generator) -> None:
        x, n = self.vector(rng), int(rng.choice(SIZES))
        for _ in range(2):
            y = self.product(rng, x, n)
            self.values.append((y - jnp.mean(y)) * lax.rsqrt(jnp.var(y) + 0.1))

    def control(self, rng: np.random.Generator) -> None:
        x = self.vector(rng)
        W = self.weight(rng, len(x), len(x)).astype(x.dtype)
        kind = rng.integers(3)
        if kind == 0:
            self.values.append(lax.fori_loop(0, 2, lambda _, h: jnp.tanh(h @ W), x))
        elif kind == 1:
            self.values.append(
                lax.cond(x[0] > 0.0193, lambda x: x @ W, lambda x: x * 2, jnp.tanh(x))
            )
        else:
            step: Any = partial(lambda h, w: (jnp.tanh(h * w), h))
            self.values.append(lax.scan(step, x, W)[0])

    def small_things(self, rng: np.random.Generator) -> None:
        x = self.vector(rng)
        noise = jax.random.normal(jax.random.key(3), x.shape, x.dtype)
        count = jnp.arange(3) @ self.params["counts"]
        found = [
            x + noise,
            x * lax.stop_gradient(x),
            x + count.astype(x.dtype),
            jnp.broadcast_to(jnp.mean(x), x.shape),
            x[::-1],
        ]
        self.values.append(found[rng.integers(len(found))])

    def towers(self, rng: np.random.Generator) -> None:
        found = [each for each in self.values if each.ndim == 1 and len(each) == 3]
        for x in found[:3]:
            self.values.append(jnp.tanh(x @ self.weight(rng, 3, 2).astype(x.dtype)))

    def cast(self, rng: np.random.Generator) -> None:
        x = self.vector(rng)
        to = jnp.bfloat16 if x.dtype != jnp.bfloat16 else self.constant.dtype
        self.values += [x.astype(to)] * 2

    def output(self, rng: np.random.Generator, inputs: Sequence[Any]) -> Any:
        count = min(len(self.values), int(rng.integers(1, 5)))
        chosen = rng.choice(len(self.values), count, replace=False)
        found: dict[str, Any] = {"last": self.values[-1]}
        found["some"] = [self.values[k] for k in chosen]
        if rng.random() < 0.3:
            found["input"] = inputs[0]
        if rng.random() < 0.3:
            found["param"] = (self.params["b20"], self.params["b30"] * 2)
        if rng.random() < 0.2:
            found["number"] = jnp.float32(3)
        return found
