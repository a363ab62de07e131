"""The lattice LSTM: a character LSTM where words are shortcuts to their last character.

Source: Zhang, Yang, "Chinese NER Using Lattice LSTM", ACL 2018, section 3.3, equations
11 to 15, one direction, without the CRF. A word's cell starts from the state at its
first character and computes only a memory; it has no output gate. Where words end, the
character's memory is a weighted sum of the words' memories and its own candidate, and
the gates that weight it sum to one; the previous memory is not used. Characters and
words share one vocabulary and one embedding, because no word is a single character. The
initial state is a parameter.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid

import edbatch as eb
from edbatch.data import CharacterLattice
from edbatch.data.files import PathLike
from edbatch.models.shared.character_lattices import over_character_lattices, walk
from edbatch.models.shared.gates import gates, linked, lstm_step
from edbatch.models.shared.initial_params import affine, embedding, gate
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.label_classifier import classify
from edbatch.models.shared.workload import Workload

State = tuple[Array, Array]  # h and c, each [H]


@eb.cell
def start(params: Any) -> State:
    """Returns the initial state."""
    return params["start"]["h"], params["start"]["c"]


@eb.cell
def char(params: Any, character: Array, state: State) -> State:
    """Returns the state at a character where no word ends; equation 11."""
    return lstm_step(params["char"], params["embedding"][character], state)


@eb.cell
def word(params: Any, word: Array, state: State) -> Array:
    """Returns the memory of a word, ``[H]``, from the state at its first character.

    Equation 12.
    """
    h, c = state
    i, f, u = gates(params["word"], "ifu", params["embedding"][word], h)
    return sigmoid(f) * c + sigmoid(i) * jnp.tanh(u)


@eb.cell(padded=("words",))
def char_words(
    params: Any, character: Array, state: State, words: Array, mask: Array
) -> State:
    """Returns the state at a character where words end; equations 11 and 13 to 15.

    The words arrive as their memories ``[K, H]``. The mask ``[K]`` is true for words
    and false for padding.
    """
    exists = mask[:, None]
    x = params["embedding"][character]
    i, o, u = gates(params["char"], "iou", x, state[0])
    link = linked(params["link"], x, words)
    # Gates are between 0 and 1, so their exponentials are between 1 and e.
    shares = jnp.where(exists, jnp.exp(sigmoid(link)), 0)
    own = jnp.exp(sigmoid(i))
    total = own + jnp.sum(shares, axis=0)
    c = (own * jnp.tanh(u) + jnp.sum(shares * words, axis=0)) / total
    return sigmoid(o) * jnp.tanh(c), c


def tag(params: Any, lattice: CharacterLattice) -> list[Any]:
    """Tags the characters of a lattice.

    Args:
        params: Parameters, as returned by `init_params`.
        lattice: A lattice of indices; its tags are not read.

    Returns:
        Logits ``[L]`` for each character.

    Example:
        >>> from edbatch.data import LatticeWord
        >>> params = init_params(jax.random.key(0), hidden=4, vocabulary_size=9)
        >>> lattice = CharacterLattice([1, 2, 3], [0, 0, 0], [LatticeWord(0, 2, 7)])
        >>> len(tag(params, lattice))
        3
    """
    states = walk(params, lattice, start, char, word, char_words)
    return [classify(params, h) for h, _ in states]


def init_params(
    key: Array, hidden: int, vocabulary_size: int, *, num_tags: int = 18
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of the states and of the vectors of characters and words, H.
        vocabulary_size: Number of characters and words together.
        num_tags: Number of tags, L.

    Returns:
        Nested dicts of float32 arrays.
    """
    keys = jax.random.split(key, 5)
    zero = jnp.zeros(hidden, jnp.float32)
    return {
        "embedding": embedding(keys[0], vocabulary_size, hidden),
        "start": {"h": zero, "c": zero},
        "char": init_gates(keys[1], "ifou", hidden, hidden),
        "word": init_gates(keys[2], "ifu", hidden, hidden),
        "link": gate(keys[3], hidden, hidden),
        "classify": affine(keys[4], hidden, num_tags),
    }


def workload(
    vocabulary_size: int = 10_000, num_tags: int = 18, words: PathLike | None = None
) -> Workload:
    """Builds ``"lattice-lstm"``.

    Args:
        vocabulary_size: Number of characters and words together.
        num_tags: Number of tags.
        words: Path of the word list; by default the list is among the files to read.

    Returns:
        The workload.
    """
    return over_character_lattices(
        "lattice-lstm", "LSTM", tag, init_params, vocabulary_size, num_tags, words
    )
