"""Models of equal layers, and of experts in one array, for tests of shared loops."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb

DEPTH, WIDTH = 5, 6


SHARED = eb.Compiler()


OPTIONS = {
    "default": {},
    "hoisted": {"compiler": replace(SHARED, hoisting="always")},
    "as it is written": {"compiler": replace(SHARED, packing="never", slices="never")},
    "remat": {"compiler": replace(SHARED, remat="always")},
    "aligned": {
        "planner": eb.Planner(layout="aligned"),
        "compiler": replace(SHARED, slices="always"),
    },
}


SIZES = eb.Sizes(widths=(4,), max_waste=1e9)


@eb.cell
def embed(table, word):
    return table[word]


@eb.cell
def project(layer, vector, before):
    return jnp.tanh(vector @ layer["W"] + before @ layer["U"] + layer["b"])


@eb.cell
def step(layer, below, before):
    gate = jax.nn.sigmoid(below @ layer["W"] - before @ layer["U"])
    return gate * jnp.tanh(before @ layer["U"] + layer["b"]), gate


@eb.cell(padded=("states",), lengths=(4,))
def attend(layer, query, states, mask):
    scores = jnp.where(mask, states @ layer["W"] @ query, -jnp.inf)
    return jax.nn.softmax(scores) @ states


@eb.cell(static=("power",))
def scale(common, layer, state, power):
    # An array that all layers share, a small one of each, and one that is read twice.
    spread = 1 + jnp.sqrt(layer["b"] ** 2 + 1)
    return common @ state / spread + layer["W"] @ (layer["W"] @ state) ** power


@eb.cell
def gain(layer):
    return layer["b"] * 2 + layer["U"].sum(0)


def model(params, instance):
    """A few layers over words; the instance decides which layers run."""
    words, vectors, layers = instance
    states = [embed(params["table"], word) for word in words]
    for k in layers:
        layer = params["layers"][k]
        before, above = gain(layer), []
        for state, vector in zip(states, vectors, strict=True):
            hidden = project(layer, vector, before)
            hidden, gate = step(layer, state, hidden)
            before = scale(params["common"], layer, hidden, 2)
            above.append(before)
            before = attend(layer, gate, above)
        states = above
    return {"top": states[-1], "all": states}


def make_params(seed=0, depth=DEPTH, dtype=np.float32):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(0, 0.5, shape).astype(dtype)

    layer = {"W": (WIDTH, WIDTH), "U": (WIDTH, WIDTH), "b": (WIDTH,)}
    return {
        "table": normal(7, WIDTH),
        "common": normal(WIDTH, WIDTH),
        "layers": [
            {name: normal(*shape) for name, shape in layer.items()}
            for _ in range(depth)
        ],
    }


def minibatch(seed=0, count=4, depth=DEPTH):
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        length = int(rng.integers(1, 5))
        words = rng.integers(0, 7, length).tolist()
        vectors = list(rng.normal(size=(length, WIDTH)).astype(np.float32))
        layers = rng.integers(0, depth, int(rng.integers(1, 4))).tolist()
        found.append((words, vectors, layers))
    # All layers, so that every family exists from the first minibatch on.
    words, vectors, _ = found[0]
    found[0] = words, vectors, list(range(depth))
    return found


def types_that_run(plan):
    program = plan.shape.program
    return [program.types.types[k] for k in sorted({x.type_id for x in program.loops})]


def families(plan):
    return {x.key.cell: x.family.size for x in types_that_run(plan) if x.family}


ALL = dict.fromkeys(("project", "step", "attend", "scale", "gain"), DEPTH)


@functools.cache
def batched(name):
    return eb.batch(model, "agenda", sizes=SIZES, params=make_params(), **OPTIONS[name])


@eb.cell
def start(vector):
    return vector


@eb.cell
def choose(mixture, k, state):
    hidden = jnp.tanh(state @ mixture["W"][k] + mixture["b"][k])
    return hidden @ mixture["V"][k] + mixture["W"][k][0, 0]


def mixture(params, instance):
    chosen, vector = instance
    state = start(vector)
    for k in chosen:
        state = choose(params["mixture"], k, state)
    return state


def make_mixture(experts=6, n=64, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"W": (experts, n, n), "V": (experts, n, n), "b": (experts, n)}
    return {
        "mixture": {
            name: rng.normal(0, n**-0.5, shape).astype(np.float32)
            for name, shape in shapes.items()
        }
    }


def choices(seed=0, count=9, experts=6, n=64):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, n)).astype(np.float32)
    chosen = rng.integers(-experts, experts, (count, 3))
    chosen[0] = [experts + 5, -experts - 3, 0]  # indexing clamps these
    return list(zip(chosen.tolist(), vectors, strict=True))
