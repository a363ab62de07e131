"""A message-passing network over graphs as a user may write it, with 17 types.

Each round has its own parameters, and lists of neighbours are padded to powers of
two: three rounds by five lengths, an embedding and a sum over all vertices.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb

ROUNDS = 3
FEATURES = 11
NUM_TYPES = 17


class Molecule(NamedTuple):
    """An undirected graph of ``N`` vertices without self-loops."""

    features: np.ndarray  # [N, FEATURES] float32
    neighbours: list[list[int]]


@eb.cell
def embed(params, features):
    return jnp.tanh(features @ params["weight"] + params["bias"])


@eb.cell(padded=("neighbours",))
def update(params, state, neighbours, mask):
    """A gated sum of the neighbours' messages."""
    messages = jax.nn.relu(neighbours @ params["message"])
    total = jnp.where(mask[:, None], messages, 0).sum(axis=0)
    gate = jax.nn.sigmoid(state @ params["gate"] + params["gate_bias"])
    return gate * state + (1 - gate) * jnp.tanh(total @ params["combine"] + state)


@eb.cell(padded=("states",))
def read_out(params, states, mask):
    total = jnp.where(mask[:, None], states, 0).sum(axis=0)
    return (total * params["weight"]).sum() + params["bias"]


def message_passing(params, graph):
    states = [embed(params["embed"], each) for each in graph.features]
    for own in params["rounds"]:
        states = [
            update(own, state, [states[k] for k in near])
            for state, near in zip(states, graph.neighbours, strict=True)
        ]
    return read_out(params["read_out"], states)


def make_params(hidden=32, seed=0):
    keys = iter(jax.random.split(jax.random.key(seed), 20))

    def matrix(rows, columns):
        return jax.random.normal(next(keys), (rows, columns)) / np.sqrt(rows)

    return {
        "embed": {"weight": matrix(FEATURES, hidden), "bias": jnp.zeros(hidden)},
        "rounds": [
            {
                "message": matrix(hidden, hidden),
                "gate": matrix(hidden, hidden),
                "gate_bias": jnp.zeros(hidden),
                "combine": matrix(hidden, hidden),
            }
            for _ in range(ROUNDS)
        ],
        "read_out": {"weight": matrix(hidden, 1)[:, 0], "bias": jnp.float32(0)},
    }


def sample_molecule(rng):
    """A tree of 10 to 16 vertices, one of them a hub, with a few extra edges."""
    count = int(rng.integers(10, 17))
    edges = {(int(rng.integers(0, k)), k) for k in range(1, count)}
    hub = int(rng.integers(0, count))
    near = rng.choice(count, int(rng.integers(2, count)), replace=False).tolist()
    edges |= {(min(hub, k), max(hub, k)) for k in near if k != hub}
    neighbours: list[list[int]] = [[] for _ in range(count)]
    for one, other in sorted(edges):
        neighbours[one].append(other)
        neighbours[other].append(one)
    features = rng.normal(size=(count, FEATURES)).astype(np.float32)
    return Molecule(features, neighbours)


def sample_molecules(seed, count):
    rng = np.random.default_rng(seed)
    return [sample_molecule(rng) for _ in range(count)]
