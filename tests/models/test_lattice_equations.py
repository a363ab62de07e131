"""The lattice networks against NumPy, float64, written from the papers once more."""

import numpy as np
import pytest
from equations import HIDDEN, assert_close, gate, sampled, sigmoid, wide

from edbatch.data import Arc, CharacterLattice, LatticeWord, SpeechLattice

# Three words end at the last character, so that their padded list has room to spare;
# one spans the whole sentence, and one begins where another ends.
NESTED = CharacterLattice(
    [3, 1, 4, 1, 5],
    [0, 0, 0, 0, 0],
    [
        LatticeWord(0, 4, 9),
        LatticeWord(0, 1, 8),
        LatticeWord(1, 4, 7),
        LatticeWord(3, 4, 6),
    ],
)
# Words on the arcs into node 3 differ; node 2 is a dead end; two arcs are parallel.
DAG = SpeechLattice(
    [
        Arc(0, 1, 5, -0.5),
        Arc(0, 1, 5, -2.0),
        Arc(1, 2, 6, -1.0),
        Arc(1, 3, 7, 0.0),
        Arc(0, 3, 8, -1.5),
        Arc(1, 3, 7, -3.0),
        Arc(3, 4, 2, 0.0),
    ]
)


def gates(affine, inputs, count):
    return (inputs @ W + b for W, b in (gate(affine, k) for k in range(count)))


def shared(own, others):
    """Equations 14 and 15: (gate, value) pairs, summed by the softmax of the gates."""
    pairs = [own, *others]
    total = sum(np.exp(each) for each, _ in pairs)
    return sum(np.exp(each) / total * value for each, value in pairs)


def ending_at(lattice, place):
    return [each for each in lattice.words if each.last == place]


def lattice_lstm(params, lattice):
    """Equations 11 to 15 of Zhang and Yang 2018; gates i, f, o, u."""
    vectors = params["embedding"]
    states = []
    h, c = params["start"]["h"], params["start"]["c"]
    for place, character in enumerate(lattice.characters):
        x = vectors[character]
        i, f, o, u = gates(params["char"], np.concatenate([x, h]), 4)
        memories = []
        for each in ending_at(lattice, place):
            h_first, c_first = states[each.first]
            inputs = np.concatenate([vectors[each.word], h_first])
            i_w, f_w, u_w = gates(params["word"], inputs, 3)
            memory = sigmoid(f_w) * c_first + sigmoid(i_w) * np.tanh(u_w)
            [link] = gates(params["link"], np.concatenate([x, memory]), 1)
            memories.append((sigmoid(link), memory))
        if memories:
            c = shared((sigmoid(i), np.tanh(u)), memories)
        else:
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        h = sigmoid(o) * np.tanh(c)
        states.append((h, c))
    return [h for h, _ in states]


def gru(params, x, h):
    """The update gate and the candidate; gates z, r."""
    z, r = gates(params["gates"], np.concatenate([x, h]), 2)
    [u] = gates(params["candidate"], np.concatenate([x, sigmoid(r) * h]), 1)
    return sigmoid(z), np.tanh(u)


def lattice_gru(params, lattice):
    vectors = params["embedding"]
    states = []
    h = params["start"]["h"]
    for place, character in enumerate(lattice.characters):
        x = vectors[character]
        z, u = gru(params["char"], x, h)
        words = []
        for each in ending_at(lattice, place):
            first = states[each.first]
            z_w, u_w = gru(params["word"], vectors[each.word], first)
            state = (1 - z_w) * first + z_w * u_w
            [link] = gates(params["link"], np.concatenate([x, state]), 1)
            words.append((sigmoid(link), state))
        h = shared((z, u), words) if words else (1 - z) * h + z * u
        states.append(h)
    return states


def dag_lstm(params, lattice):
    """The child-sum equations over incoming arcs, recursively; gates i, o, u, f."""

    def term(word, score, k):
        W, b = gate(params["arc"], k)
        return np.append(params["embedding"][word], score) @ W + b

    def from_state(h, k):
        return h @ params["state"]["W"][:, k * HIDDEN : (k + 1) * HIDDEN]

    def state(node):
        if node == 0:
            return params["start"]["h"], params["start"]["c"]
        arcs = [arc for arc in lattice.arcs if arc.target == node]
        before = [state(arc.source) for arc in arcs]
        h_sum = sum(h for h, _ in before)
        i, o, u = (
            np.mean([term(arc.word, arc.score, k) for arc in arcs], axis=0)
            + from_state(h_sum, k)
            for k in range(3)
        )
        c = sigmoid(i) * np.tanh(u)
        for arc, (h, c_before) in zip(arcs, before, strict=True):
            f = term(arc.word, arc.score, 3) + from_state(h, 3)
            c = c + sigmoid(f) * c_before
        return sigmoid(o) * np.tanh(c), c

    return state(lattice.num_nodes - 1)[0]


@pytest.mark.parametrize(
    ("name", "states"), [("lattice-lstm", lattice_lstm), ("lattice-gru", lattice_gru)]
)
def test_lattice_networks_compute_the_equations(name, states):
    model, params, lattices = sampled(name, count=3)
    output = wide(params)["classify"]
    lattices.append(NESTED)
    lattices.append(CharacterLattice([2], [0]))
    lattices.sort(key=len)
    for lattice in lattices[:4]:
        expected = states(wide(params), lattice)
        assert_close(model(params, lattice), expected @ output["W"] + output["b"])


def test_dag_lstm_computes_the_equations():
    model, params, lattices = sampled("dag-lstm", count=12)
    output = wide(params)["classify"]
    lattices = [each for each in lattices if each.num_nodes < 15] + [DAG]
    assert {len(arcs) for each in lattices for arcs in each.incoming()} >= {1, 2, 3}
    for lattice in lattices:
        found = model(params, lattice)
        h = dag_lstm(wide(params), lattice)
        assert_close(found["state"], h)
        assert_close(found["logits"], h @ output["W"] + output["b"])
