"""Random programs over cells of many kinds, to compare batched with unbatched runs."""

from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb


@eb.cell
def source(params, vector):
    return jnp.tanh(params["mix"]["a"] @ vector)


@eb.cell
def initial(params):
    return jnp.tanh(params["mix"]["a"][0])


@eb.cell
def word(params, index):
    return params["table"][index]


@eb.cell
def join(mix, left, right):
    return jnp.tanh(mix["a"] @ left + mix["b"] @ right)


@eb.cell
def split(params, vector):
    inner = params["mix"]["b"] @ vector
    return {"wide": jnp.sin(inner), "narrow": inner[:2] * 0.5}


@eb.cell
def widen(project, narrow, vector):
    return jnp.tanh(project @ narrow + vector)


@eb.cell
def total(vectors):
    return sum(vectors) / len(vectors)


@eb.cell(padded=("vectors",))
def attend(params, query, vectors, mask):
    scores = jnp.where(mask, vectors @ params["mix"]["a"] @ query, -jnp.inf)
    return jax.nn.softmax(scores) @ vectors


@eb.cell(padded=("pairs",))
def attend_pairs(params, pairs, mask):
    wide, narrow = pairs
    weight = jnp.where(mask, narrow.sum(-1), 0.0)
    return jnp.tanh(weight @ wide), mask.sum()


@eb.cell
def index_of(vector):
    return jnp.argmax(vector)


@eb.cell(static=("power",))
def raise_to(vector, power):
    return vector**power * 0.5


SIZE = 3


def make_params(seed=0):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(rng.standard_normal(shape) / 2, jnp.float32)

    return {
        "mix": {"a": draw(SIZE, SIZE), "b": draw(SIZE, SIZE)},
        "other": [{"a": draw(SIZE, SIZE), "b": draw(SIZE, SIZE)}],
        "project": draw(SIZE, 2),
        "table": draw(7, SIZE),
        "unused": draw(2),
        "steps": jnp.int32(3),
    }


OPERATIONS = (
    "initial",
    "source",
    "word",
    "join",
    "join_other",
    "split",
    "widen",
    "total",
    "attend",
    "attend_pairs",
    "index",
    "power",
)


def sample_program(rng, length, operations=OPERATIONS):
    """Draws a program: (operation, numbers) pairs, interpreted by `interpret`."""
    program = [("word", [int(rng.integers(7))])]
    for _ in range(length - 1):
        name = operations[rng.integers(len(operations))]
        count = int(rng.integers(1, 4))
        program.append((name, [int(each) for each in rng.integers(0, 99, count + 2)]))
    return program


def interpret(params, program, more=MappingProxyType({})):
    """The model: runs a program on a list of vectors, a stack of pairs and indices.

    `more` has additional operations: functions of params, vectors and numbers.
    """
    vectors, pairs, counts = [], [], []

    def pick(k):
        return vectors[k % len(vectors)]

    for name, numbers in program:
        first, last = numbers[0], numbers[-1]
        if name == "word" or not vectors:
            vectors.append(word(params, first % 7))
        elif name == "initial":
            vectors.append(initial(params))
        elif name == "source":
            vectors.append(source(params, np.float32([first % 5, 1, -0.5])))
        elif name == "join":
            vectors.append(join(params["mix"], pick(first), pick(last)))
        elif name == "join_other":
            vectors.append(join(params["other"][0], pick(first), pick(last)))
        elif name == "split":
            both = split(params, pick(first))
            pairs.append((both["wide"], both["narrow"]))
        elif name == "widen" and pairs:
            narrow = pairs[last % len(pairs)][1]
            vectors.append(widen(params["project"], narrow, pick(first)))
        elif name == "total":
            vectors.append(total([pick(k) for k in numbers]))
        elif name == "attend":
            vectors.append(attend(params, pick(first), [pick(k) for k in numbers]))
        elif name == "attend_pairs" and pairs:
            chosen = [pairs[k % len(pairs)] for k in numbers]
            vector, count = attend_pairs(params, chosen)
            vectors.append(vector)
            counts.append(count)
        elif name == "index":
            vectors.append(word(params, index_of(pick(first))))
        elif name == "power":
            vectors.append(raise_to(pick(first), 2 + last % 2))
        elif name in more:
            vectors.append(more[name](params, vectors, numbers))
    return {
        "last": vectors[-1],
        "all": vectors,
        "pairs": [{"narrow": narrow, "wide": wide} for wide, narrow in pairs],
        "counts": counts,
        "length": len(program),
    }
