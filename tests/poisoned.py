"""Minibatches in which one instance is poisoned.

The values of one instance (NaN, infinity, numbers that overflow, points at which a
derivative is infinite) must not change outputs and gradients of the others.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb

SIZE = 5
WORDS = 40
EXPERTS = 4

# Values that replace the vectors of the poisoned instance. Norms have no derivative
# at zero; 3e38 overflows in every product.
POISONS = {"nan": np.nan, "inf": np.inf, "overflow": 3e38, "zero": 0.0}


@eb.cell
def leaf(params, vector, word):
    return jnp.tanh(params["leaf"] @ vector + params["table"][word])


@eb.cell
def join(params, left, right):
    return jnp.tanh(params["left"] @ left + params["right"] @ right + params["bias"])


@eb.cell
def mix(params, vector, child):
    """A product of an external input, which can be hoisted."""
    return jnp.tanh(params["leaf"] @ vector + params["right"] @ child)


@eb.cell
def expert(own, child):
    return child + own["weights"] @ child * own["gain"]


@eb.cell
def normalize(params, child):
    """Two outputs whose derivatives are infinite where the child is zero."""
    length = jnp.sqrt((child * child).sum())
    return params["gain"] * child / length, length


@eb.cell
def raw(vector):
    return vector * 1.0


@eb.cell(padded=("children",))
def attend(params, children, mask):
    scores = jnp.where(mask, children @ params["query"], -jnp.inf)
    return jax.nn.softmax(scores) @ children


@eb.cell
def drop(child, *, rng):
    return child * jax.random.bernoulli(rng, 0.7, child.shape)


def model(params, tree):
    """Runs one tree: (operation, parts...)."""
    name, *parts = tree
    if name == "leaf":
        return leaf(params, *parts)
    if name == "normal":
        return normalize(params, raw(parts[0]))[0]
    if name == "long":
        vector, length = normalize(params, raw(parts[0]))
        return scale(length, vector)
    if name == "mix":
        return mix(params, parts[0], model(params, parts[1]))
    if name == "expert":
        return expert(params["experts"][parts[0]], model(params, parts[1]))
    children = [model(params, each) for each in parts]
    if name == "join":
        return join(params, *children)
    return attend(params, children) if name == "attend" else drop(*children)


@eb.cell
def scale(length, vector):
    return length * vector


def chain(params, parts):
    """Runs a chain, whose operands are mostly read as slices."""
    *steps, (k, vector) = parts
    state = leaf(params, *steps[0])
    for each in steps[1:]:
        state = join(params, state, leaf(params, *each))
    last, length = normalize(params, raw(vector))
    return expert(params["experts"][k], join(params, state, scale(length, last)))


def make_params(seed=0):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    return {
        "leaf": draw(SIZE, SIZE),
        "left": draw(SIZE, SIZE),
        "right": draw(SIZE, SIZE),
        "bias": draw(SIZE),
        "gain": draw(SIZE),
        "query": draw(SIZE),
        "table": draw(WORDS, SIZE),
        "experts": [
            {"weights": draw(SIZE, SIZE), "gain": draw(SIZE)} for _ in range(EXPERTS)
        ],
    }


def sample_tree(rng, words, experts, depth):
    """Draws a tree from the given words and experts."""

    def vector():
        return rng.normal(size=SIZE).astype(np.float32)

    def draw(depth):
        if depth == 0 or rng.random() < 0.1:
            if rng.random() < 0.3:
                return (("normal", "long")[rng.integers(2)], vector())
            return ("leaf", vector(), int(rng.choice(words)))
        name = ("join", "join", "mix", "expert", "attend", "drop")[rng.integers(6)]
        if name == "mix":
            return (name, vector(), draw(depth - 1))
        if name == "expert":
            return (name, int(rng.choice(experts)), draw(depth - 1))
        count = {"join": 2, "drop": 1, "attend": int(rng.integers(1, 4))}[name]
        return (name, *(draw(depth - 1) for _ in range(count)))

    return draw(depth)


def poison(tree, value):
    """Replaces all numbers of a tree's vectors by a value."""
    return type(tree)(
        poison(each, value)
        if isinstance(each, tuple | list)
        else np.full_like(each, value)
        if isinstance(each, np.ndarray)
        else each
        for each in tree
    )


def sample_minibatch(seed, instances, at, depth=4):
    """Draws trees; only tree `at` reads the last words and the last expert."""
    rng = np.random.default_rng(seed)
    own = ((WORDS - 2, WORDS - 1), (EXPERTS - 1,))
    others = (range(WORDS - 2), range(EXPERTS - 1))
    return [
        sample_tree(rng, *(own if k == at else others), 1 + (depth + k) % depth)
        for k in range(instances)
    ]


def sample_chains(seed, lengths, at):
    """Draws chains; only chain `at` reads the last words and the last expert."""
    rng = np.random.default_rng(seed)

    def vector():
        return rng.normal(size=SIZE).astype(np.float32)

    def draw(length, own):
        words = (
            rng.integers(WORDS - 2, size=length) if not own else [WORDS - 1] * length
        )
        steps = [(vector(), int(word)) for word in words]
        k = EXPERTS - 1 if own else int(rng.integers(EXPERTS - 1))
        return (*steps, (k, vector()))

    return [draw(length, k == at) for k, length in enumerate(lengths)]


def input_owners(graph):
    """Returns the instance that reads each row of each pool."""
    node_instance = np.repeat(np.arange(graph.num_instances), graph.instance_nodes)
    edge_node = np.repeat(
        np.arange(len(graph.node_type)), np.diff(graph.external_start)
    )
    slot = np.arange(len(edge_node)) - graph.external_start[edge_node]
    owners = {kind: np.full(len(pool), -1) for kind, pool in graph.externals.items()}
    for edge, node in enumerate(edge_node):
        node_type = graph.types.types[graph.node_type[node]]
        kind = node_type.external_kinds[slot[edge]]
        if kind in owners and graph.external_rows[edge] >= 0:
            owners[kind][graph.external_rows[edge]] = node_instance[node]
    return owners


class Differentiated:
    """A batched function and the gradients of a loss that reads all its outputs.

    Args:
        batched: The function.
        rng: The key for cells that draw random numbers.
        params: Its parameters; `make_params()` if None.
    """

    def __init__(self, batched, rng=None, params=None):
        self.batched, self.rng = batched, rng
        self.params = make_params() if params is None else params
        self._grad = jax.jit(jax.grad(self._loss, argnums=(0, 1), has_aux=True))

    def _loss(self, params, pools, plan):
        own = dataclasses.replace(plan, pools=plan.pools | pools)
        outputs = self.batched.apply(params, own, rng=self.rng)
        return sum(jnp.sin(each).sum() for each in jax.tree.leaves(outputs)), outputs

    def __call__(self, instances):
        """Returns outputs, parameter gradients, and input (gradients, owners)."""
        plan = self.batched.plan(instances)
        floats = {
            kind: pool
            for kind, pool in plan.pools.items()
            if jnp.issubdtype(pool.dtype, jnp.floating)
        }
        found, outputs = self._grad(self.params, floats, plan)
        owners = input_owners(self.batched.graph(instances))
        (own, inputs), outputs = jax.tree.map(np.asarray, (found, outputs))
        inputs = {
            kind: (inputs[kind][1 : 1 + len(owners[kind])], owners[kind])
            for kind in floats
        }
        return outputs, own, inputs


def assert_isolated(differentiated, before, clean, at, value):
    """Checks that a poisoned instance changes no output or gradient of another one.

    `before` is the result of `differentiated(clean)`.
    """
    dirty = [poison(each, value) if k == at else each for k, each in enumerate(clean)]
    others = np.arange(len(clean)) != at
    outputs, own, inputs = before
    other_outputs, other_own, other_inputs = differentiated(dirty)
    pairs = zip(*map(jax.tree.leaves, (outputs, other_outputs)), strict=True)
    for known, found in pairs:
        assert np.isfinite(known).all()
        np.testing.assert_array_equal(found[others], known[others])
    for kind, (known, owner) in inputs.items():
        assert np.isfinite(known).all()
        found, _ = other_inputs[kind]
        np.testing.assert_array_equal(found[owner != at], known[owner != at])
    if not isinstance(own, dict):
        return
    # Only the poisoned instance reads the last words and the last expert.
    np.testing.assert_array_equal(other_own["table"][:-2], own["table"][:-2])
    assert own["table"][:-2].any()
    for k in range(EXPERTS - 1):
        for name, known in own["experts"][k].items():
            np.testing.assert_array_equal(other_own["experts"][k][name], known)
