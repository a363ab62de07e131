"""Readers of public formats and samplers of synthetic instances.

Trees are `Tree`, tagged sentences `Sentence`, both immutable plain Python. Readers take
a file, a folder or several of them; whatever is wrong is a `DataError` that says where.

Example:
    >>> from edbatch.data import Vocabulary, binarize, index_tree, parse_trees
    >>> trees = parse_trees("(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))")
    >>> vocabulary = Vocabulary(word for tree in trees for word in tree.words())
    >>> print(index_tree(binarize(trees[0]), vocabulary))
    (S (NP (DT 1) (NN 2)) (@S (VP 3) (. 4)))
"""

from edbatch.data.binarize import binarize, collapse_unary
from edbatch.data.columns import read_columns
from edbatch.data.conllu import read_dependency_trees, read_sentences
from edbatch.data.dependencies import tree_from_heads
from edbatch.data.errors import DataError
from edbatch.data.ptb import parse_trees, read_trees
from edbatch.data.samplers import (
    sample_dependency_trees,
    sample_lengths,
    sample_sentences,
    sample_tree,
    sample_trees,
)
from edbatch.data.sentences import Sentence
from edbatch.data.trees import Tree
from edbatch.data.vocabulary import Vocabulary, index_sentence, index_tree

__all__ = [
    "DataError",
    "Sentence",
    "Tree",
    "Vocabulary",
    "binarize",
    "collapse_unary",
    "index_sentence",
    "index_tree",
    "parse_trees",
    "read_columns",
    "read_dependency_trees",
    "read_sentences",
    "read_trees",
    "sample_dependency_trees",
    "sample_lengths",
    "sample_sentences",
    "sample_tree",
    "sample_trees",
    "tree_from_heads",
]
