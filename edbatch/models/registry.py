"""The ready workloads by name, and their options."""

import inspect
from collections.abc import Callable
from typing import Any

from edbatch.errors import nearest
from edbatch.models import (
    lattice_workloads,
    program_workloads,
    tagger_workloads,
    translation_workloads,
    tree_workloads,
)
from edbatch.models.errors import WorkloadError
from edbatch.models.workload import Workload


def get_workload(name: str, **options: Any) -> Workload:
    """Finds a workload.

    Args:
        name: One of `WORKLOADS`. Over constituency trees: ``"tree-lstm"``,
            ``"tree-gru"``, ``"mv-rnn"``, ``"tree-lstm-2type"``; over dependency
            trees: ``"tree-lstm-childsum"``; over tagged sentences:
            ``"bilstm-tagger"``, ``"bilstm-tagger-char"``; over lattices of characters
            and words: ``"lattice-lstm"``, ``"lattice-gru"``; over speech lattices:
            ``"dag-lstm"``; over sentence pairs: ``"lstm-nmt"``; over the programs of
            CLEVR's questions: ``"neural-module-network"``.
        **options: ``vocabulary_size`` (10,000), the number of words; for trees
            ``num_labels`` (5), for taggers ``num_tags`` (18), of a classifier. For
            constituency trees also ``classify`` (``"root"``): ``"nodes"`` classifies
            every node; and, but for ``mv-rnn``, ``arity`` (2): the largest number of
            children, 2 meaning that treebanks are binarized. For
            ``bilstm-tagger-char`` also ``min_count`` (5): words that occur less often
            in the data are read by their characters, which are numbers below
            ``num_characters`` (256). For ``neural-module-network`` the words are the
            values of functions, 20 with the unknown one, and ``num_answers`` (29) is
            that of the classifier.
            For lattices of characters also ``words``: the file of the word list,
            which otherwise is among the files to read; their ``num_tags`` is as for
            taggers, and the ``num_labels`` of ``dag-lstm`` as for trees. For
            ``lstm-nmt`` ``vocabulary_size`` holds for each language, and
            ``source_tokens`` and ``target_tokens`` (``"words"``) may be
            ``"characters"``.

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


def _check_count(name: str, option: str, value: Any) -> None:
    if not isinstance(value, int) or value < 1:
        raise WorkloadError(
            f"option {option!r} of {name!r} is a whole number, 1 or more, but this is"
            f" {value!r}; leave it out for the default"
        )


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "tree-lstm": tree_workloads.tree_lstm_workload,
    "tree-gru": tree_workloads.tree_gru_workload,
    "mv-rnn": tree_workloads.mv_rnn_workload,
    "tree-lstm-2type": tree_workloads.tree_lstm_2type_workload,
    "tree-lstm-childsum": tree_workloads.tree_lstm_childsum_workload,
    "bilstm-tagger": tagger_workloads.bilstm_tagger_workload,
    "bilstm-tagger-char": tagger_workloads.bilstm_tagger_char_workload,
    "lattice-lstm": lattice_workloads.lattice_lstm_workload,
    "lattice-gru": lattice_workloads.lattice_gru_workload,
    "dag-lstm": lattice_workloads.dag_lstm_workload,
    "lstm-nmt": translation_workloads.lstm_nmt_workload,
    "neural-module-network": program_workloads.neural_module_network_workload,
}
