"""The workloads over trees."""

from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from edbatch.data import (
    Tree,
    Vocabulary,
    index_tree,
    read_dependency_trees,
    sample_dependency_trees,
)
from edbatch.errors import nearest
from edbatch.models import (
    mv_rnn,
    tree_gru,
    tree_lstm,
    tree_lstm_2type,
    tree_lstm_childsum,
)
from edbatch.models.constituency import read_limited, sample_limited
from edbatch.models.errors import WorkloadError
from edbatch.models.workload import Workload

_Model = Callable[[Any, Tree], Any]


def _models(module: ModuleType) -> dict[str, _Model]:
    return {"root": module.classify_root, "nodes": module.classify_nodes}


def _nary(name: str, what: str, module: ModuleType) -> Callable[..., Workload]:
    """Makes the builder of a workload over trees of any arity."""

    def build(
        arity: int = 2,
        classify: str = "root",
        vocabulary_size: int = 10_000,
        num_labels: int = 5,
    ) -> Workload:
        """Builds the workload; options as for `get_workload`."""
        return _constituency(
            name,
            what,
            _models(module),
            partial(module.init_params, arity=arity, num_labels=num_labels),
            arity=arity,
            classify=classify,
            vocabulary_size=vocabulary_size,
        )

    return build


tree_lstm_workload = _nary(
    "tree-lstm", "An N-ary tree-LSTM (Tai et al. 2015)", tree_lstm
)
tree_gru_workload = _nary(
    "tree-gru", "An N-ary tree-GRU (Cho et al. 2014, over children)", tree_gru
)
tree_lstm_2type_workload = _nary(
    "tree-lstm-2type",
    "An N-ary tree-LSTM with a composition for nominal phrases and one for others",
    tree_lstm_2type,
)


def mv_rnn_workload(
    classify: str = "root", vocabulary_size: int = 10_000, num_labels: int = 5
) -> Workload:
    """Builds ``"mv-rnn"``; options as for `get_workload`."""
    return _constituency(
        "mv-rnn",
        "A matrix-vector recursive network (Socher et al. 2012)",
        _models(mv_rnn),
        partial(mv_rnn.init_params, num_labels=num_labels),
        arity=2,
        classify=classify,
        vocabulary_size=vocabulary_size,
    )


def tree_lstm_childsum_workload(
    vocabulary_size: int = 10_000, num_labels: int = 5
) -> Workload:
    """Builds ``"tree-lstm-childsum"``; options as for `get_workload`."""
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


def _constituency(
    name: str,
    what: str,
    models: Mapping[str, _Model],
    init_params: Callable[..., Any],
    *,
    arity: int,
    classify: str,
    vocabulary_size: int,
) -> Workload:
    """Builds a workload over constituency trees; ``models`` goes by ``classify``."""
    if arity < 2:
        raise WorkloadError(
            f"the arity of {name!r} is 2 or more but this is {arity}; 2 binarizes"
            " treebanks, the largest number of children keeps them as they are"
        )
    if classify not in models:
        raise WorkloadError(
            f"option 'classify' of {name!r} is 'root' or 'nodes' but this is"
            f" {classify!r}; {nearest(str(classify), models)}"
        )
    where = {"root": "the root", "nodes": "every node"}[classify]
    return Workload(
        name=name,
        description=(
            f"{what} over constituency trees of arity {arity}, with a classifier at"
            f" {where}."
        ),
        vocabulary_size=vocabulary_size,
        model=models[classify],
        init_params=partial(init_params, vocabulary_size=vocabulary_size),
        read_text=partial(read_limited, arity=arity),
        words=Tree.words,
        number=_number_trees,
        sample=partial(sample_limited, vocabulary_size=vocabulary_size, arity=arity),
    )


def _number_trees(trees: list[Tree], vocabulary: Vocabulary) -> list[Tree]:
    return [index_tree(tree, vocabulary) for tree in trees]
