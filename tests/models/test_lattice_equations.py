"""The lattice networks against independent float64 NumPy versions of the papers."""

import numpy as np
import pytest
from equations import assert_close, gate, sampled, sigmoid, wide

from edbatch.data import Arc, CharacterLattice, LatticeWord, SpeechLattice

pytestmark = pytest.mark.usefixtures("quick_compiles")

# Three words end at the last character, so their padded list has unused entries;
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
# Words on the arcs into node 3 differ; node 2 is a dead end; some arcs are parallel.
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


def shared(own, others):
    """Equations 14 and 15: sum of the values, weighted by the softmax of the gates."""
    pairs = [own, *others]
    total = sum(np.exp(each) for each, _ in pairs)
    return sum(np.exp(each) / total * value for each, value in pairs)


def ending_at(lattice, place):
    return [each for each in lattice.words if each.last == place]


def lattice_lstm(params, lattice):
    """Equations 11 to 15 of Zhang and Yang 2018; in one direction."""
    vectors = params["embedding"]
    states = []
    h, c = params["start"]["h"], params["start"]["c"]
    for place, character in enumerate(lattice.characters):
        x = vectors[character]
        i, f, o, u = (gate(params["char"][name], x, h) for name in "ifou")
        memories = []
        for each in ending_at(lattice, place):
            h_first, c_first = states[each.first]
            x_w = vectors[each.word]
            i_w, f_w, u_w = (gate(params["word"][name], x_w, h_first) for name in "ifu")
            memory = sigmoid(f_w) * c_first + sigmoid(i_w) * np.tanh(u_w)
            memories.append((sigmoid(gate(params["link"], x, memory)), memory))
        if memories:
            c = shared((sigmoid(i), np.tanh(u)), memories)
        else:
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(u)
        h = sigmoid(o) * np.tanh(c)
        states.append((h, c))
    return [h for h, _ in states]


def gru(params, x, h):
    """The update gate and the candidate."""
    z, r = (gate(params[name], x, h) for name in "zr")
    return sigmoid(z), np.tanh(gate(params["u"], x, sigmoid(r) * h))


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
            words.append((sigmoid(gate(params["link"], x, state)), state))
        h = shared((z, u), words) if words else (1 - z) * h + z * u
        states.append(h)
    return states


def dag_lstm(params, lattice):
    """The child-sum equations over incoming arcs, recursively."""
    own = params["gates"]

    def term(arc, name):
        x = np.append(params["embedding"][arc.word], arc.score)
        return x @ own[name]["W"] + own[name]["b"]

    def state(node):
        if node == 0:
            return params["start"]["h"], params["start"]["c"]
        arcs = [arc for arc in lattice.arcs if arc.target == node]
        before = [state(arc.source) for arc in arcs]
        h_sum = sum(h for h, _ in before)
        i, o, u = (
            np.mean([term(arc, name) for arc in arcs], axis=0) + h_sum @ own[name]["U"]
            for name in "iou"
        )
        c = sigmoid(i) * np.tanh(u)
        for arc, (h, c_before) in zip(arcs, before, strict=True):
            c = c + sigmoid(term(arc, "f") + h @ own["f"]["U"]) * c_before
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
