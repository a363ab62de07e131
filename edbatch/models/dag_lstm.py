"""The DAG-LSTM: an LSTM over word lattices, whose nodes may have several incoming arcs.

Source: the child-sum unit of Tai, Socher, Manning, "Improved Semantic Representations
From Tree-Structured Long Short-Term Memory Networks", ACL 2015, equations 2 to 8, over
lattices as in Sperber, Neubig, Niehues, Waibel, "Neural Lattice-to-Sequence Models for
Uncertain Inputs", EMNLP 2017. A node's predecessors take the place of children: their
states are summed, and each has its own forget gate. Two things differ from Sperber et
al.: words stay on the arcs, as recognisers write them, so a node's input is the mean
over its incoming arcs; and an arc's score is appended to its word's vector instead of
weighting the sum. For a node with one incoming arc the sum reduces to a plain LSTM
step, which is a separate cell.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid

import edbatch as eb
from edbatch.data import (
    SpeechLattice,
    Vocabulary,
    index_speech_lattice,
    read_plf,
    sample_speech_lattices,
)
from edbatch.models.shared.gates import gates
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.label_classifier import classify
from edbatch.models.shared.workload import Workload

State = tuple[Array, Array]  # h and c, each [H]


@eb.cell
def start(params: Any) -> State:
    """Returns the state of the first node."""
    return params["start"]["h"], params["start"]["c"]


@eb.cell
def step(params: Any, word: Any, score: Any, state: State) -> State:
    """Returns the state of a node with one incoming arc, given its source's state."""
    h, c = state
    x = jnp.append(params["embedding"][word], score)
    i, o, u, f = gates(params["gates"], "iouf", x, h)
    c = sigmoid(i) * jnp.tanh(u) + sigmoid(f) * c
    return sigmoid(o) * jnp.tanh(c), c


# Few lengths: more padding costs less than the batches of more types (measured with
# hidden=64 and hidden=256).
@eb.cell(padded=("arcs",), lengths=(4, 16, 64))
def merge(params: Any, arcs: tuple[Array, Array, State], mask: Array) -> State:
    """Returns the state of a node with several incoming arcs.

    The arcs arrive as words ``[K]``, scores ``[K]``, and the ``h`` and ``c`` of their
    sources, each ``[K, H]``. The mask ``[K]`` is true for arcs and false for padding.
    """
    words, scores, (h, c) = arcs
    exists = mask[:, None]
    own = params["gates"]
    x = jnp.concatenate([params["embedding"][words], scores[:, None]], axis=1)
    mean = jnp.mean(x, axis=0, where=exists)  # products are linear: average first
    i, o, u = gates(own, "iou", mean, jnp.sum(h, axis=0, where=exists))
    f = x @ own["f"]["W"] + h @ own["f"]["U"] + own["f"]["b"][None]  # [K, H]
    kept = jnp.sum(sigmoid(f) * c, axis=0, where=exists)
    c = sigmoid(i) * jnp.tanh(u) + kept
    return sigmoid(o) * jnp.tanh(c), c


def encode(params: Any, lattice: SpeechLattice) -> dict[str, Any]:
    """Encodes a lattice and classifies it.

    Args:
        params: Parameters, as returned by `init_params`.
        lattice: A lattice of word indices.

    Returns:
        ``state``: the last node's ``h``, ``[H]``; ``logits``: ``[L]``.

    Example:
        >>> from edbatch.data import Arc
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> lattice = SpeechLattice([Arc(0, 1, 5, -0.7), Arc(0, 1, 3, -0.9)])
        >>> encode(params, lattice)["logits"].shape
        (5,)
    """
    _, *others = lattice.incoming()
    states = [start(params)]
    for arcs in others:
        if len(arcs) == 1:
            [arc] = arcs
            state = step(params, arc.word, arc.score, states[arc.source])
        else:
            found = [(arc.word, arc.score, states[arc.source]) for arc in arcs]
            state = merge(params, found)
        states.append(state)
    h, _ = states[-1]
    return {"state": h, "logits": classify(params, h)}


def init_params(
    key: Array, hidden: int, vocabulary_size: int, *, num_labels: int = 5
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of states and word vectors, H.
        vocabulary_size: Number of words.
        num_labels: Number of labels, L.

    Returns:
        Nested dicts of float32 arrays.
    """
    words, own, output = jax.random.split(key, 3)
    zero = jnp.zeros(hidden, jnp.float32)
    return {
        "embedding": embedding(words, vocabulary_size, hidden),
        "start": {"h": zero, "c": zero},
        "gates": init_gates(own, "iouf", hidden + 1, hidden),
        "classify": affine(output, hidden, num_labels),
    }


def workload(vocabulary_size: int = 10_000, num_labels: int = 5) -> Workload:
    """Builds ``"dag-lstm"``.

    Args:
        vocabulary_size: Number of words.
        num_labels: Number of labels of the classifier.

    Returns:
        The workload.
    """
    return Workload(
        name="dag-lstm",
        description=(
            "A child-sum LSTM over speech lattices (Sperber et al. 2017), with a"
            " classifier at the last node."
        ),
        reads="lattices in PLF",
        vocabulary_size=vocabulary_size,
        model=encode,
        init_params=partial(
            init_params, vocabulary_size=vocabulary_size, num_labels=num_labels
        ),
        read_text=read_plf,
        words=lambda lattice: [arc.word for arc in lattice.arcs],
        number=_number,
        sample=partial(sample_speech_lattices, vocabulary_size=vocabulary_size),
        zoo_data=("fisher_callhome_lattices/plf/fisher_dev.es",),
    )


def _number(
    lattices: list[SpeechLattice], vocabulary: Vocabulary
) -> list[SpeechLattice]:
    return [index_speech_lattice(each, vocabulary) for each in lattices]
