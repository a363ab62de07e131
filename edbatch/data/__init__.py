"""Readers of public formats and samplers of synthetic instances.

Trees are `Tree` objects, tagged sentences `Sentence`, functional programs `Program`,
and so on; all are immutable plain Python objects. Readers take a file, a folder or
several of them, and raise a `DataError` that names the place of a fault.

Example:
    >>> from edbatch.data import Vocabulary, binarize, index_tree, parse_trees
    >>> trees = parse_trees("(S (NP (DT the) (NN dog)) (VP (VBZ barks)) (. .))")
    >>> vocabulary = Vocabulary(word for tree in trees for word in tree.words())
    >>> print(index_tree(binarize(trees[0]), vocabulary))
    (S (NP (DT 1) (NN 2)) (@S (VP 3) (. 4)))
"""

from edbatch.data.arc_standard import Configuration, oracle
from edbatch.data.binarize import binarize, collapse_unary
from edbatch.data.character_lattice_sampler import sample_character_lattices
from edbatch.data.character_lattices import (
    CharacterLattice,
    LatticeWord,
    index_character_lattice,
    read_character_lattices,
)
from edbatch.data.clevr import read_programs
from edbatch.data.columns import read_columns
from edbatch.data.conllu import (
    read_dependency_trees,
    read_parsed_sentences,
    read_sentences,
)
from edbatch.data.dependencies import tree_from_heads
from edbatch.data.parsed_sentence_sampler import sample_parsed_sentences
from edbatch.data.parsed_sentences import ParsedSentence, index_parsed_sentence
from edbatch.data.program_samplers import sample_programs
from edbatch.data.programs import Program, index_program
from edbatch.data.ptb import parse_trees, read_trees
from edbatch.data.samplers import (
    sample_dependency_trees,
    sample_lengths,
    sample_sentences,
    sample_tree,
    sample_trees,
)
from edbatch.data.sentence_pair_sampler import sample_sentence_pairs
from edbatch.data.sentence_pairs import (
    PairVocabulary,
    SentencePair,
    index_sentence_pair,
    read_sentence_pairs,
)
from edbatch.data.sentences import Sentence
from edbatch.data.speech_lattice_sampler import sample_speech_lattices
from edbatch.data.speech_lattices import (
    Arc,
    SpeechLattice,
    index_speech_lattice,
    read_plf,
)
from edbatch.data.spelled_sentences import (
    SpelledSentence,
    sample_spelled_sentences,
    spell_sentence,
)
from edbatch.data.tree_decisions import Decision, decisions, tree_from_decisions
from edbatch.data.trees import Tree
from edbatch.data.vocabulary import (
    LabelledVocabulary,
    Vocabulary,
    index_sentence,
    index_tree,
)
from edbatch.data.word_lists import WordList, read_word_list
from edbatch.errors import DataError

__all__ = [
    "Arc",
    "CharacterLattice",
    "Configuration",
    "DataError",
    "Decision",
    "LabelledVocabulary",
    "LatticeWord",
    "PairVocabulary",
    "ParsedSentence",
    "Program",
    "Sentence",
    "SentencePair",
    "SpeechLattice",
    "SpelledSentence",
    "Tree",
    "Vocabulary",
    "WordList",
    "binarize",
    "collapse_unary",
    "decisions",
    "index_character_lattice",
    "index_parsed_sentence",
    "index_program",
    "index_sentence",
    "index_sentence_pair",
    "index_speech_lattice",
    "index_tree",
    "oracle",
    "parse_trees",
    "read_character_lattices",
    "read_columns",
    "read_dependency_trees",
    "read_parsed_sentences",
    "read_plf",
    "read_programs",
    "read_sentence_pairs",
    "read_sentences",
    "read_trees",
    "read_word_list",
    "sample_character_lattices",
    "sample_dependency_trees",
    "sample_lengths",
    "sample_parsed_sentences",
    "sample_programs",
    "sample_sentence_pairs",
    "sample_sentences",
    "sample_speech_lattices",
    "sample_spelled_sentences",
    "sample_tree",
    "sample_trees",
    "spell_sentence",
    "tree_from_decisions",
    "tree_from_heads",
]
