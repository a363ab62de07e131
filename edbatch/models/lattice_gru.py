"""The lattice GRU: a character GRU where words are shortcuts to their last character.

Source: the lattice LSTM of Zhang, Yang, "Chinese NER Using Lattice LSTM", ACL 2018,
section 3.3, with the unit of Cho et al., "Learning Phrase Representations using RNN
Encoder-Decoder for Statistical Machine Translation", EMNLP 2014, in place of its LSTMs.
The state is only h. A word's cell is a GRU step from the state at its first character.
Where words end, the new state is a weighted sum of the words' states and the
character's candidate, with the weights of equations 13 to 15; the character's update
gate takes the place of its input gate. The initial state is a parameter.
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
from edbatch.models.shared.gates import gates, linked
from edbatch.models.shared.initial_params import affine, embedding, gate
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.label_classifier import classify
from edbatch.models.shared.workload import Workload


@eb.cell
def start(params: Any) -> Array:
    """Returns the initial state, ``[H]``."""
    return params["start"]["h"]


@eb.cell
def char(params: Any, character: Array, h: Array) -> Array:
    """Returns the state at a character where no word ends, ``[H]``."""
    update, candidate = _gru(params["char"], params["embedding"][character], h)
    return (1 - update) * h + update * candidate


@eb.cell
def word(params: Any, word: Array, h: Array) -> Array:
    """Returns the state of a word, ``[H]``, from the state at its first character."""
    update, candidate = _gru(params["word"], params["embedding"][word], h)
    return (1 - update) * h + update * candidate


@eb.cell(padded=("words",))
def char_words(
    params: Any, character: Array, h: Array, words: Array, mask: Array
) -> Array:
    """Returns the state at a character where words end, ``[H]``.

    The words arrive as their states ``[K, H]``. The mask ``[K]`` is true for words and
    false for padding.
    """
    exists = mask[:, None]
    x = params["embedding"][character]
    update, candidate = _gru(params["char"], x, h)
    link = linked(params["link"], x, words)
    # Gates are between 0 and 1, so their exponentials are between 1 and e.
    shares = jnp.where(exists, jnp.exp(sigmoid(link)), 0)
    own = jnp.exp(update)
    total = own + jnp.sum(shares, axis=0)
    return (own * candidate + jnp.sum(shares * words, axis=0)) / total


def _gru(params: Any, x: Array, h: Array) -> tuple[Array, Array]:
    """Returns the update gate and the candidate of a GRU step."""
    z, r = gates(params, "zr", x, h)
    [u] = gates(params, "u", x, sigmoid(r) * h)
    return sigmoid(z), jnp.tanh(u)


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
    return [classify(params, h) for h in states]


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
    return {
        "embedding": embedding(keys[0], vocabulary_size, hidden),
        "start": {"h": jnp.zeros(hidden, jnp.float32)},
        "char": init_gates(keys[1], "zru", hidden, hidden),
        "word": init_gates(keys[2], "zru", hidden, hidden),
        "link": gate(keys[3], hidden, hidden),
        "classify": affine(keys[4], hidden, num_tags),
    }


def workload(
    vocabulary_size: int = 10_000, num_tags: int = 18, words: PathLike | None = None
) -> Workload:
    """Builds ``"lattice-gru"``.

    Args:
        vocabulary_size: Number of characters and words together.
        num_tags: Number of tags.
        words: Path of the word list; by default the list is among the files to read.

    Returns:
        The workload.
    """
    return over_character_lattices(
        "lattice-gru", "GRU", tag, init_params, vocabulary_size, num_tags, words
    )
