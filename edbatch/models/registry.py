"""The ready workloads by name, and their options."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from edbatch.data import (
    Sentence,
    Tree,
    Vocabulary,
    index_sentence,
    index_tree,
    read_dependency_trees,
    sample_dependency_trees,
    sample_sentences,
)
from edbatch.errors import nearest
from edbatch.models import bilstm_tagger, tree_lstm, tree_lstm_childsum
from edbatch.models.constituency import read_limited, sample_limited
from edbatch.models.errors import WorkloadError
from edbatch.models.tagged_text import read_tagged
from edbatch.models.workload import Workload

_CLASSIFIERS = {
    "root": tree_lstm.classify_root,
    "nodes": tree_lstm.classify_nodes,
}


def get_workload(name: str, **options: Any) -> Workload:
    """Finds a workload.

    Args:
        name: ``"tree-lstm"``, ``"tree-lstm-childsum"`` or ``"bilstm-tagger"``.
        **options: ``vocabulary_size`` (10,000), the number of words; for trees
            ``num_labels`` (5), for the tagger ``num_tags`` (18), of a classifier. For
            ``tree-lstm`` also ``arity`` (2): the largest number of children, 2 meaning
            that treebanks are binarized; and ``classify`` (``"root"``): ``"nodes"``
            classifies every node.

    Returns:
        The workload.

    Raises:
        WorkloadError: There is no such workload or option, or it cannot have the value.

    Example:
        >>> import numpy as np
        >>> workload = get_workload("bilstm-tagger", vocabulary_size=50)
        >>> [sentence] = workload.sample(np.random.default_rng(0), 1)
        >>> max(sentence.words) < 50
        True
    """
    if name not in WORKLOADS:
        raise WorkloadError(
            f"a workload is one of {', '.join(WORKLOADS)} but this is {name!r};"
            f" {nearest(str(name), WORKLOADS)}"
        )
    build = WORKLOADS[name]
    known = inspect.signature(build).parameters
    for option, value in options.items():
        if option not in known:
            raise WorkloadError(
                f"workload {name!r} has no option {option!r}; {nearest(option, known)}"
            )
        if isinstance(known[option].default, int):
            _check_count(name, option, value)
    return build(**options)


def _tree_lstm(
    arity: int = 2,
    classify: str = "root",
    vocabulary_size: int = 10_000,
    num_labels: int = 5,
) -> Workload:
    if arity < 2:
        raise WorkloadError(
            f"the arity of 'tree-lstm' is 2 or more but this is {arity}; 2 binarizes"
            " treebanks, the largest number of children keeps them as they are"
        )
    if classify not in _CLASSIFIERS:
        raise WorkloadError(
            f"option 'classify' of 'tree-lstm' is 'root' or 'nodes' but this is"
            f" {classify!r}; {nearest(str(classify), _CLASSIFIERS)}"
        )
    where = {"root": "the root", "nodes": "every node"}[classify]
    return Workload(
        name="tree-lstm",
        description=(
            f"An N-ary tree-LSTM (Tai et al. 2015) over constituency trees of arity"
            f" {arity}, with a classifier at {where}."
        ),
        vocabulary_size=vocabulary_size,
        model=_CLASSIFIERS[classify],
        init_params=partial(
            tree_lstm.init_params,
            vocabulary_size=vocabulary_size,
            arity=arity,
            num_labels=num_labels,
        ),
        read_text=partial(read_limited, arity=arity),
        words=Tree.words,
        number=_number_trees,
        sample=partial(sample_limited, vocabulary_size=vocabulary_size, arity=arity),
    )


def _tree_lstm_childsum(vocabulary_size: int = 10_000, num_labels: int = 5) -> Workload:
    return Workload(
        name="tree-lstm-childsum",
        description=(
            "A child-sum tree-LSTM (Tai et al. 2015) over dependency trees, with a"
            " classifier at the root."
        ),
        vocabulary_size=vocabulary_size,
        model=tree_lstm_childsum.classify_root,
        init_params=partial(
            tree_lstm_childsum.init_params,
            vocabulary_size=vocabulary_size,
            num_labels=num_labels,
        ),
        read_text=read_dependency_trees,
        words=Tree.words,
        number=_number_trees,
        sample=partial(sample_dependency_trees, vocabulary_size=vocabulary_size),
    )


def _bilstm_tagger(vocabulary_size: int = 10_000, num_tags: int = 18) -> Workload:
    def number(sentences: list[Sentence], vocabulary: Vocabulary) -> list[Sentence]:
        tags = Vocabulary(
            (tag for each in sentences for tag in each.tags), max_size=num_tags
        )
        return [index_sentence(each, vocabulary, tags) for each in sentences]

    return Workload(
        name="bilstm-tagger",
        description="A tagger of two bidirectional LSTM layers, with a tag per word.",
        vocabulary_size=vocabulary_size,
        model=bilstm_tagger.tag,
        init_params=partial(
            bilstm_tagger.init_params,
            vocabulary_size=vocabulary_size,
            num_tags=num_tags,
        ),
        read_text=read_tagged,
        words=lambda sentence: sentence.words,
        number=number,
        sample=partial(
            sample_sentences, vocabulary_size=vocabulary_size, num_tags=num_tags
        ),
    )


def _number_trees(trees: list[Tree], vocabulary: Vocabulary) -> list[Tree]:
    return [index_tree(tree, vocabulary) for tree in trees]


def _check_count(name: str, option: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise WorkloadError(
            f"option {option!r} of {name!r} is a whole number, 1 or more, but this is"
            f" {value!r}; leave it out for the default"
        )


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "tree-lstm": _tree_lstm,
    "tree-lstm-childsum": _tree_lstm_childsum,
    "bilstm-tagger": _bilstm_tagger,
}
