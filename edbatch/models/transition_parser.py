"""An arc-standard dependency parser with stack LSTMs.

Source: Dyer, Ballesteros, Ling, Matthews, Smith, "Transition-Based Dependency Parsing
with Stack Long Short-Term Memory", ACL 2015: LSTMs over the stack, the buffer and the
history of transitions, whose states are kept in lists, so that popping costs nothing
(section 2); tokens from vectors of word and part of speech (3.2); a head is composed
with its dependent and the relation (3.3). Three things differ: there are no pretrained
word vectors, there is no artificial root on the stack (see
`edbatch.data.arc_standard`), and the LSTMs have one layer without peepholes.

Two models share one loop: `score_oracle` follows the transitions of the gold tree, for
training; `parse` follows its own decisions, which it reads with `edbatch.value`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import edbatch as eb
from edbatch.data import (
    Configuration,
    DataError,
    LabelledVocabulary,
    ParsedSentence,
    index_parsed_sentence,
    oracle,
    read_parsed_sentences,
    sample_parsed_sentences,
)
from edbatch.data.arc_standard import SHIFT, count_transitions, left_arc
from edbatch.data.files import Paths
from edbatch.models.shared.gates import lstm_step
from edbatch.models.shared.initial_params import affine, embedding
from edbatch.models.shared.initial_params import gates as init_gates
from edbatch.models.shared.tagged_text import tags_of
from edbatch.models.shared.workload import Labels, Workload

State = tuple[Array, Array]  # h and c, each [H]
Choose = Callable[[Any, Configuration], int]  # (logits [A], parse state) -> transition


@eb.cell
def start(params: Any) -> dict[str, State]:
    """Returns the initial states of the stack, the buffer and the history."""
    return {name: (own["h"], own["c"]) for name, own in params["start"].items()}


@eb.cell
def token(params: Any, word: Any, tag: Any) -> Array:
    """Returns the vector of a word and its part of speech, ``[H]``."""
    both = [params["word_embedding"][word], params["tag_embedding"][tag]]
    return jnp.tanh(jnp.concatenate(both) @ params["token"]["W"] + params["token"]["b"])


@eb.cell
def push(params: Any, x: Array, state: State) -> State:
    """Returns the state of a stack LSTM after pushing a vector."""
    return lstm_step(params, x, state)


@eb.cell
def record(params: Any, transition: Any, state: State) -> State:
    """Returns the state of the history after one more transition."""
    x = params["transition_embedding"][transition]
    return lstm_step(params["history"], x, state)


@eb.cell
def compose(params: Any, head: Array, dependent: Array, transition: Any) -> Array:
    """Returns the vector of a head with one more dependent, ``[H]``.

    The transition encodes the relation and the side of the dependent.
    """
    relation = params["transition_embedding"][transition]
    inputs = jnp.concatenate([head, dependent, relation])
    return jnp.tanh(inputs @ params["compose"]["W"] + params["compose"]["b"])


@eb.cell
def score(params: Any, stack: Array, buffer: Array, history: Array) -> Array:
    """Returns the logits of the next transition, ``[A]``, from the three states' h."""
    inputs = jnp.concatenate([stack, buffer, history])
    hidden = jax.nn.relu(inputs @ params["summary"]["W"] + params["summary"]["b"])
    return hidden @ params["output"]["W"] + params["output"]["b"]


def score_oracle(params: Any, sentence: ParsedSentence) -> list[Any]:
    """Scores the transitions that derive the gold tree.

    Args:
        params: Parameters, as returned by `init_params`.
        sentence: A projective sentence of indices.

    Returns:
        Logits ``[A]`` for each transition of `edbatch.data.oracle`, in its order.

    Raises:
        DataError: Arcs of the sentence cross.

    Example:
        >>> params = init_params(jax.random.key(0), 4, vocabulary_size=9)
        >>> sentence = ParsedSentence([3, 1], [2, 5], [2, 0], [7, 0])
        >>> [logits.shape for logits in score_oracle(params, sentence)]
        [(121,), (121,), (121,)]
    """
    transitions = iter(oracle(sentence.heads, sentence.relations))
    return follow(params, sentence, lambda *_: next(transitions))[0]


def parse(params: Any, sentence: ParsedSentence) -> dict[str, Any]:
    """Parses a sentence greedily: takes the likeliest legal transition at each step.

    Args:
        params: Parameters, as returned by `init_params`.
        sentence: A sentence of indices; only its words and tags are read.

    Returns:
        ``heads`` and ``relations`` of the parse, as in `ParsedSentence`;
        ``transitions``: the transitions that derived it; ``logits``: ``[A]`` for each
        transition.

    Example:
        >>> params = init_params(jax.random.key(0), 4, vocabulary_size=9)
        >>> found = parse(params, ParsedSentence([3, 1], [2, 5], [2, 0], [7, 0]))
        >>> sorted(found["heads"])[0], len(found["transitions"])
        (0, 3)
    """
    transitions: list[int] = []

    def choose(logits: Any, where: Configuration) -> int:
        transition = SHIFT
        if where.may_reduce:
            scores = eb.value(logits)
            legal = where.legal(len(scores))
            transition = int(np.where(legal, scores, -np.inf).argmax())
        transitions.append(transition)
        return transition

    logits, where = follow(params, sentence, choose)
    return {
        "heads": where.heads,
        "relations": where.relations,
        "transitions": transitions,
        "logits": logits,
    }


def follow(
    params: Any, sentence: ParsedSentence, choose: Choose
) -> tuple[list[Any], Configuration]:
    """Makes the transitions of ``choose``; returns their logits and the final parse."""
    where = Configuration(len(sentence))
    empty = start(params)
    tokens = [
        token(params, word, tag)
        for word, tag in zip(sentence.words, sentence.tags, strict=True)
    ]
    of_buffer, of_stack = params["buffer"], params["stack"]
    buffer = [empty["buffer"]]  # states; the last one has read all words in the buffer
    for vector in reversed(tokens):
        buffer.append(push(of_buffer, vector, buffer[-1]))
    vectors: list[Any] = []  # of the words on the stack
    stack = [empty["stack"]]  # states, one more than vectors
    history = empty["history"]
    found = []
    while True:
        found.append(score(params, stack[-1][0], buffer[-1][0], history[0]))
        transition = choose(found[-1], where)
        where.apply(transition)
        if where.done:  # later states would be unused
            return found, where
        if transition == SHIFT:
            vector = tokens[where.next_word - 1]
            buffer.pop()
        else:
            top, below = vectors.pop(), vectors.pop()
            is_left = transition == left_arc((transition - 1) // 2)
            head, dependent = (top, below) if is_left else (below, top)
            vector = compose(params, head, dependent, transition)
            del stack[-2:]
        vectors.append(vector)
        stack.append(push(of_stack, vector, stack[-1]))
        history = record(params, transition, history)


def init_params(
    key: Array,
    hidden: int,
    vocabulary_size: int,
    *,
    num_tags: int = 18,
    num_relations: int = 60,
) -> dict[str, Any]:
    """Samples parameters.

    Args:
        key: A `jax.random` key.
        hidden: Length of states and vectors, H.
        vocabulary_size: Number of words.
        num_tags: Number of parts of speech; by default the 17 parts of speech of
            Universal Dependencies and the unknown one.
        num_relations: Number of relations, R; there are ``A = 1 + 2 R`` transitions.

    Returns:
        Nested dicts of float32 arrays.
    """
    keys = jax.random.split(key, 10)
    lstms = ("stack", "buffer", "history")
    transitions = count_transitions(num_relations)
    zero = jnp.zeros(hidden, jnp.float32)
    return {
        "word_embedding": embedding(keys[0], vocabulary_size, hidden),
        "tag_embedding": embedding(keys[1], num_tags, hidden),
        "transition_embedding": embedding(keys[2], transitions, hidden),
        "start": {name: {"h": zero, "c": zero} for name in lstms},
        "token": affine(keys[3], 2 * hidden, hidden),
        "compose": affine(keys[4], 3 * hidden, hidden),
        "summary": affine(keys[5], 3 * hidden, hidden),
        "output": affine(keys[6], hidden, transitions),
    } | {
        name: init_gates(own, "ifou", hidden, hidden)
        for name, own in zip(lstms, keys[7:], strict=True)
    }


def read_projective(path: Paths) -> list[ParsedSentence]:
    """Reads sentences without crossing arcs, the only ones that transitions can derive.

    Args:
        path: A CoNLL-U file, a folder, or several of them.

    Returns:
        The projective sentences; words, tags and relations are still strings. Of UD
        English EWT, 1.4% of the sentences are left out.

    Raises:
        DataError: A file is missing or malformed, or arcs cross in every sentence.
    """
    sentences = read_parsed_sentences(path)
    projective = [each for each in sentences if each.is_projective]
    if not projective:
        raise DataError(
            "the transition parser reads sentences without crossing arcs, but arcs"
            f" cross in all {len(sentences)} of the data; usually a file of a few"
            " sentences; read more"
        )
    return projective


def number_parses(
    sentences: list[ParsedSentence], vocabulary: LabelledVocabulary
) -> list[ParsedSentence]:
    """Replaces words, tags and relations by their indices.

    Args:
        sentences: Sentences of strings.
        vocabulary: The vocabulary of words, with labels ``"tags"`` and ``"relations"``.
            Unknown words and tags become 0, unknown relations 1.

    Returns:
        The sentences of indices.
    """
    words, labels = vocabulary.words, vocabulary.labels
    tags, relations = labels["tags"], labels["relations"]
    return [index_parsed_sentence(each, words, tags, relations) for each in sentences]


def workload(
    vocabulary_size: int = 10_000, num_tags: int = 18, num_relations: int = 60
) -> Workload:
    """Builds ``"transition-parser"``.

    Args:
        vocabulary_size: Number of words.
        num_tags: Number of parts of speech.
        num_relations: Number of relations, the root's relation included.

    Returns:
        The workload.
    """
    sizes: dict[str, Any] = {"num_tags": num_tags, "num_relations": num_relations}
    return Workload(
        name="transition-parser",
        description=(
            "An arc-standard dependency parser with stack LSTMs (Dyer et al. 2015),"
            " with the logits of every transition."
        ),
        reads="CoNLL-U; sentences with crossing arcs are left out",
        vocabulary_size=vocabulary_size,
        model=score_oracle,
        decode=parse,
        init_params=partial(init_params, vocabulary_size=vocabulary_size, **sizes),
        read_text=read_projective,
        words=lambda sentence: sentence.words,
        number=number_parses,
        labels=(
            tags_of(num_tags),
            Labels(
                "relations",
                lambda sentence: sentence.relations,
                max(1, num_relations - 1),
                num_relations,
            ),
        ),
        sample=partial(
            sample_parsed_sentences, vocabulary_size=vocabulary_size, **sizes
        ),
    )
