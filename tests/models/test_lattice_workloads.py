"""How the workloads over lattices and sentence pairs read their data."""

from pathlib import Path

import jax
import pytest
from equations import random_like, sampled

import edbatch as eb
from edbatch.data import (
    Arc,
    CharacterLattice,
    DataError,
    LatticeWord,
    PairVocabulary,
    SentencePair,
    SpeechLattice,
    Vocabulary,
)
from edbatch.models import WorkloadError, get_workload

OVER_CHARACTERS = ["lattice-lstm", "lattice-gru"]
WEIBO = ["weibo_ner/weiboNER_2nd_conll.dev", "jieba_dict/dict.txt.small"]
PUBLISHED = [
    ("lattice-lstm", WEIBO),
    ("lattice-gru", WEIBO),
    ("dag-lstm", ["fisher_callhome_lattices/plf/fisher_dev.es"]),
    ("lstm-nmt", ["tatoeba_cmn_eng/cmn.txt"]),
]
CHARACTERS = "a O\nb O\na X\n\nc O\n"
WORDS = "ab 7 n\nbc 3 v\n"
# Numbered by frequency, then by first appearance: a, b, ab, c; tags: O, X.
LATTICES = [
    CharacterLattice((1, 2, 1), (1, 1, 2), (LatticeWord(0, 1, 3),)),
    CharacterLattice((4,), (1,)),
]


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize("name", OVER_CHARACTERS)
def test_the_word_list_is_found_among_the_files(name: str, tmp_path: Path) -> None:
    text = write(tmp_path, "a.conll", CHARACTERS)
    words = write(tmp_path, "dict.txt", WORDS)
    for paths in ([text, words], [words, text], tmp_path):
        assert get_workload(name).read(paths) == LATTICES


@pytest.mark.parametrize("name", OVER_CHARACTERS)
def test_the_word_list_is_an_option(name: str, tmp_path: Path) -> None:
    text = write(tmp_path, "a.conll", CHARACTERS)
    # With a number after every character the file looks like a word list.
    places = write(tmp_path, "b.conll", "a 0 O\nb 1 O\n")
    words = write(tmp_path, "dict.lst", "ab\n")
    workload = get_workload(name, words=words)
    assert workload.read(text) == LATTICES
    assert workload.read(str(places))[0].words == (LatticeWord(0, 1, 3),)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a.conll": CHARACTERS},
            "lattices need a word list in addition to the files of characters; found "
            r"none among .*a\.conll; usually its path was left out; name a file with a"
            " word",
        ),
        (
            {"dict.txt": WORDS},
            "lattices need a file of characters and tags in addition to the word list;"
            r" found word lists only, .*dict\.txt; usually its path was left out, or"
            " its tags",
        ),
        (
            {"dict.txt": WORDS, "a.conll": "a O\nOslo B-LOC\n"},
            r"a\.conll, line 2, column 1: a line must hold one character",
        ),
    ],
)
def test_what_lattices_lack_is_named(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    paths = [write(tmp_path, name, text) for name, text in files.items()]
    with pytest.raises(DataError, match=message):
        get_workload("lattice-lstm").read(paths)


def test_a_word_list_is_a_path() -> None:
    message = "option 'words' of 'lattice-gru' is the path of a word list but this is 3"
    with pytest.raises(WorkloadError, match=message):
        get_workload("lattice-gru", words=3)


def test_speech_lattices_are_read(tmp_path: Path) -> None:
    text = "((('tea', -0.5, 1), ('two', -1, 1),),)\n()\n((('tea', 0, 1),),)\n"
    found = get_workload("dag-lstm").read(write(tmp_path, "a.plf", text))
    assert found == [
        SpeechLattice([Arc(0, 1, 1, -0.5), Arc(0, 1, 2, -1.0)]),
        SpeechLattice([Arc(0, 1, 1, 0.0)]),
    ]


def test_each_language_has_its_vocabulary(tmp_path: Path) -> None:
    file = write(tmp_path, "a.tsv", "a b\tb x\nb\tx\n")
    workload = get_workload("lstm-nmt")
    assert workload.read(file) == [
        SentencePair((2, 1), (1, 4, 2, 3)),
        SentencePair((1,), (1, 2, 3)),
    ]
    vocabulary = workload.vocabulary(workload.read_text(file))
    assert isinstance(vocabulary, PairVocabulary)
    assert vocabulary.source.tokens == ("<unk>", "b", "a")
    assert vocabulary.target.tokens == ("<unk>", "<s>", "x", "</s>", "b")


def test_a_given_pair_of_vocabularies_is_used(tmp_path: Path) -> None:
    file = write(tmp_path, "a.tsv", "a b\tb x\n")
    both = PairVocabulary(Vocabulary(["b"]), Vocabulary(["</s>", "x"]))
    found = get_workload("lstm-nmt").read(file, both)
    assert found == [SentencePair((0, 1), (0, 0, 2, 1))]


def test_each_vocabulary_is_limited(tmp_path: Path) -> None:
    file = write(tmp_path, "a.tsv", "a b c\tu v w\n")
    [pair] = get_workload("lstm-nmt", vocabulary_size=2).read(file)
    assert pair == SentencePair((1, 0, 0), (1, 0, 0, 0, 0))


def test_tokens_may_be_characters(tmp_path: Path) -> None:
    file = write(tmp_path, "a.tsv", "ab c\tu vw\n")
    [pair] = get_workload("lstm-nmt", source_tokens="characters").read(file)
    assert len(pair.source) == 3 and len(pair.target) == 2 + 2


@pytest.mark.parametrize("option", ["source_tokens", "target_tokens"])
def test_unknown_tokens_are_named(option: str) -> None:
    message = f"'{option}' of 'lstm-nmt' is 'words' or 'characters' but this is 'word'"
    with pytest.raises(WorkloadError, match=message):
        get_workload("lstm-nmt", **{option: "word"})


@pytest.mark.parametrize(
    ("name", "vocabulary", "message"),
    [
        ("lstm-nmt", Vocabulary("a"), "takes a PairVocabulary but this is a Vocabul"),
        (
            "tree-lstm",
            PairVocabulary(Vocabulary("a"), Vocabulary("b")),
            "takes a Vocabulary but this is a PairVocabulary; make it with workload",
        ),
    ],
)
def test_the_other_kind_of_vocabulary(name, vocabulary, message) -> None:
    with pytest.raises(WorkloadError, match=message):
        get_workload(name).read("a", vocabulary)


@pytest.mark.parametrize(
    ("name", "types"),
    [
        (
            "lattice-lstm",
            {
                "start/0",
                "char/2",
                "word/2",
                "char_words/3",
                "char_words/4",
                "classify/1",
            },
        ),
        (
            "lattice-gru",
            {
                "start/0",
                "char/1",
                "word/1",
                "char_words/2",
                "char_words/3",
                "classify/1",
            },
        ),
        (
            "dag-lstm",
            {"start/0", "step/2", "merge/8", "merge/32", "classify/1"},
        ),
        (
            "lstm-nmt",
            {"start@encoder/0", "lstm@encoder/2", "lstm@decoder/2"}
            | {f"attend@attention/{1 + states}" for states in (2, 4, 8, 16)},
        ),
    ],
)
def test_node_types(name: str, types: set[str]) -> None:
    model, params, instances = sampled(name, count=60)
    graph = eb.batch(model, params=params).graph(instances)
    found = {str(key) for key in graph.structure.type_keys}
    # Rare characters or nodes have more words or arcs than these types take.
    assert types <= found <= types | {"char_words/6", "char_words/5", "merge/128"}


@pytest.mark.parametrize("name", OVER_CHARACTERS)
def test_a_lattice_makes_one_node_per_word_and_two_per_character(name: str) -> None:
    model, params, lattices = sampled(name)
    batched = eb.batch(model, params=params)
    for lattice in lattices:
        graph = batched.record(lattice)
        assert graph.num_nodes == 1 + 2 * len(lattice) + len(lattice.words)


@pytest.mark.parametrize(
    ("name", "long"),
    [
        ("lattice-lstm", CharacterLattice([1] * 50_000, [0] * 50_000)),
        ("dag-lstm", SpeechLattice([Arc(k, k + 1, 1, 0.0) for k in range(50_000)])),
    ],
)
def test_a_very_long_instance_can_be_recorded(name, long) -> None:
    model, params, _ = sampled(name)
    graph = eb.batch(model, params=params).record(long)
    assert graph.structure.depth.max() == 50_001


def test_the_logits_of_translations_are_ragged() -> None:
    workload = get_workload("lstm-nmt", vocabulary_size=9)
    pairs = [SentencePair([3], [1, 4, 2]), SentencePair([5, 6], [1, 7, 8, 4, 2])]
    params = workload.init_params(jax.random.key(0), 3)
    logits = eb.batch(workload.model)(params, pairs)
    assert isinstance(logits, eb.Ragged)
    assert [each.shape for each in logits.to_list()] == [(2, 9), (4, 9)]


@pytest.mark.parametrize(
    ("name", "paths", "count"),
    [(*PUBLISHED[k], count) for k, count in enumerate((270, 270, 3963, 26388))],
)
def test_published_data_are_read(
    shared_data: Path, name: str, paths: list[str], count: int
) -> None:
    workload = get_workload(name)
    instances = workload.read([shared_data / each for each in paths])
    assert len(instances) == count
    words = {word for each in instances for word in workload.words(each)}
    assert min(words) >= 0 and max(words) < workload.vocabulary_size
    params = workload.init_params(jax.random.key(0), 2)
    graph = eb.batch(workload.model, params=params).graph(instances[-20:])
    assert graph.num_instances == 20


@pytest.mark.slow
@pytest.mark.parametrize(("name", "paths"), PUBLISHED)
def test_batched_equals_unbatched_on_real_data(
    shared_data: Path, name: str, paths: list[str]
) -> None:
    workload = get_workload(name)
    instances = workload.read([shared_data / each for each in paths])[:16]
    params = random_like(workload.init_params(jax.random.key(0), 32), 1)
    batched = eb.batch(workload.model, sizes=eb.Sizes(widths=(16,)))
    found = eb.verify(batched, params, instances)
    assert found.instances == 16
    assert found.max_output_error < 1e-4
