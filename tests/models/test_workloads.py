"""Workloads by name: their options, readers, samplers and errors."""

import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import edbatch as eb
from edbatch import models
from edbatch.data import (
    DataError,
    Sentence,
    SpelledSentence,
    Vocabulary,
    index_tree,
    parse_trees,
)
from edbatch.data.programs import pseudo_features
from edbatch.models import WORKLOADS, WorkloadError, get_workload
from edbatch.models.tree_lstm_2type import composition

TREEBANK = "(S (NP (DT the) (JJ big) (NN dog)) (VP (VBZ barks)))"
CONLLU = "1 Dogs dog NOUN NNS _ 2 nsubj _ _\n2 bark bark VERB VB _ 0 root _ _\n"


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text.replace(" ", "\t") if "conllu" in name else text)
    return file


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_found_by_its_name_and_described(name: str) -> None:
    workload = get_workload(name)
    assert workload.name == name
    assert workload.description.endswith(".")
    assert workload.reads


@pytest.mark.parametrize("name", WORKLOADS)
def test_models_can_be_sent_to_worker_processes(name: str) -> None:
    workload = get_workload(name)
    for each in (workload.model, workload.decode):
        found = pickle.loads(pickle.dumps(each))
        # Unpickling copies a `functools.partial`, but not its function.
        assert getattr(found, "func", found) is getattr(each, "func", each)


@pytest.mark.parametrize("name", WORKLOADS)
def test_samples_depend_on_the_seed_alone(name: str) -> None:
    workload = get_workload(name, vocabulary_size=40)
    first, again, other = (
        workload.sample(np.random.default_rng(seed), 5) for seed in (1, 1, 2)
    )
    assert first == again != other
    words = [word for each in first for word in workload.words(each)]
    assert len(first) == 5
    assert all(0 <= word < 40 for word in words)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "tree-lstn",
            {},
            "no workload 'tree-lstn'; did you mean 'tree-lstm'\\?; all are bilstm-tag",
        ),
        (
            "zzz",
            {},
            "there is no workload 'zzz'; all are bilstm-tagger, bilstm-tagger-char, ",
        ),
        ("tree-lstm", {"arty": 3}, "'tree-lstm' has no option 'arty'; .* 'arity'"),
        ("bilstm-tagger", {"arity": 3}, "'bilstm-tagger' has no option 'arity'"),
        ("tree-lstm", {"arity": 1}, "arity of 'tree-lstm' is 2 or more but this is 1"),
        ("tree-gru", {"arity": 1}, "arity of 'tree-gru' is 2 or more but this is 1"),
        ("mv-rnn", {"arity": 2}, "'mv-rnn' has no option 'arity'; known are 'class"),
        ("mv-rnn", {"classify": "all"}, "'classify' of 'mv-rnn' is 'root' or 'nodes'"),
        ("bilstm-tagger-char", {"min_count": 0}, "'min_count' .* but this is 0"),
        ("neural-module-network", {"num_answer": 3}, "did you mean 'num_answers'"),
        ("tree-lstm", {"arity": "3"}, "'arity' of 'tree-lstm' is a whole number"),
        ("tree-lstm", {"classify": "node"}, "'root' or 'nodes' .* mean 'nodes'"),
        ("tree-lstm-childsum", {"num_labels": 0}, "'num_labels' .* but this is 0"),
    ],
)
def test_what_does_not_exist_is_named(name, options, message) -> None:
    with pytest.raises(WorkloadError, match=message):
        get_workload(name, **options)


def test_treebanks_are_binarized(tmp_path: Path) -> None:
    file = write(tmp_path, "a.ptb", TREEBANK)
    [tree] = get_workload("tree-lstm").read(file)
    assert str(tree) == "(S (NP (DT 1) (@NP (JJ 2) (NN 3))) (VP 4))"


def test_treebanks_keep_their_arity_on_request(tmp_path: Path) -> None:
    file = write(tmp_path, "a.ptb", TREEBANK)
    [tree] = get_workload("tree-lstm", arity=3).read(file)
    assert str(tree) == "(S (NP (DT 1) (JJ 2) (NN 3)) (VP 4))"


def test_a_node_with_too_many_children_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "a.ptb", "(NP (A a) (B b) (C c) (D d))")
    message = r"arity 3 a node may .* one with 4: <Tree \(NP .* choose arity 4, or 2"
    with pytest.raises(DataError, match=message):
        get_workload("tree-lstm", arity=3).read(file)


@pytest.mark.parametrize("arity", [3, 5])
def test_sampled_trees_have_every_arity_up_to_the_limit(arity: int) -> None:
    trees = get_workload("tree-lstm", arity=arity).sample(np.random.default_rng(0), 30)
    found = {len(node.children) for tree in trees for node in tree.postorder()}
    assert found == {0, *range(2, arity + 1)}
    binary = get_workload("tree-lstm").sample(np.random.default_rng(0), 30)
    assert [tree.words() for tree in trees] == [tree.words() for tree in binary]


def test_dependency_trees_are_read(tmp_path: Path) -> None:
    file = write(tmp_path, "a.conllu", CONLLU)
    [tree] = get_workload("tree-lstm-childsum").read(file)
    assert str(tree) == "(root 1 (nsubj 2))"


def test_the_tagger_reads_both_formats(tmp_path: Path) -> None:
    conllu = write(tmp_path, "a.conllu", CONLLU)
    columns = write(tmp_path, "b.txt", "In O\nOslo B-LOC\n\nDogs O\n")
    found = get_workload("bilstm-tagger").read([conllu, columns])
    assert found == [
        Sentence((1, 2), (2, 3)),
        Sentence((3, 4), (1, 4)),
        Sentence((1,), (1,)),
    ]


def test_rare_words_are_spelled(tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", "In O\nOslo B-LOC\n\nIn O\n")
    found = get_workload("bilstm-tagger-char", min_count=2).read(file)
    assert found == [
        SpelledSentence((1, 0), (1, 2), ((), (79, 115, 108, 111))),
        SpelledSentence((1,), (1,), ((),)),
    ]
    [_, last] = get_workload("bilstm-tagger-char").read(file)
    assert last.spellings == ((73, 110),)  # by default, below five is rare


def test_a_vocabulary_that_is_full_makes_words_rare(tmp_path: Path) -> None:
    file = write(tmp_path, "a.txt", "In O\nOslo B-LOC\n\nIn O\n")
    workload = get_workload("bilstm-tagger-char", min_count=1, vocabulary_size=2)
    assert [each.words for each in workload.read(file)] == [(1, 0), (1,)]


def test_programs_are_read(tmp_path: Path) -> None:
    scene = '{"type": "scene", "inputs": []}'
    count = '{"type": "count", "inputs": [0]}'
    text = f'{{"image_index": 2, "answer": 3, "program": [{scene}, {count}]}}'
    file = write(tmp_path, "questions.json", f'{{"questions": [{text}]}}')
    [program] = get_workload("neural-module-network").read(file)
    assert program.values == (None, None)  # though no word is left for the vocabulary
    assert program.answer == 6
    assert np.array_equal(program.features, pseudo_features(2))
    [program] = get_workload("neural-module-network", num_answers=3).read(file)
    assert program.answer == 0


def test_labels_stay_for_the_two_types(tmp_path: Path) -> None:
    file = write(tmp_path, "a.ptb", TREEBANK)
    [tree] = get_workload("tree-lstm-2type").read(file)
    kinds = [composition(n.label, 0) for n in tree.postorder() if n.children]
    assert kinds == ["nominal", "nominal", "other"]


def test_sampled_trees_are_divided_in_halves() -> None:
    workload = get_workload("tree-lstm-2type")
    trees = workload.sample(np.random.default_rng(0), 100)
    params = workload.init_params(jax.random.key(0), 2)
    graph = eb.batch(workload.model, params=params).graph(trees)
    counts = np.bincount(graph.structure.node_type)
    share = {
        str(key): counts[k] / sum(len(tree.words()) - 1 for tree in trees)
        for k, key in enumerate(graph.structure.type_keys)
    }
    assert 0.45 < share["compose@nominal/4"] < 0.55


def test_of_a_folder_with_conllu_files_the_rest_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, "LICENSE.txt", "not a column file\n")
    write(tmp_path, "a.conllu", CONLLU)
    assert len(get_workload("bilstm-tagger").read(tmp_path)) == 1


def test_a_folder_of_column_files(tmp_path: Path) -> None:
    write(tmp_path, "a.conll", "In O\nOslo B-LOC\n\nDogs O\n")
    assert len(get_workload("bilstm-tagger").read(tmp_path)) == 2


@pytest.mark.parametrize("name", WORKLOADS)
def test_missing_data_is_named(name: str, tmp_path: Path) -> None:
    workload = get_workload(name)
    with pytest.raises(DataError, match=r"nothing\.here: a path to read must exist"):
        workload.read(tmp_path / "nothing.here")
    with pytest.raises(DataError, match="a reader needs at least one path"):
        workload.read([])


def test_rare_words_are_unknown_so_numbers_stay_small(tmp_path: Path) -> None:
    file = write(tmp_path, "a.ptb", "(S (A x) (B x) (C y) (D y) (E z))")
    [tree] = get_workload("tree-lstm", vocabulary_size=3).read(file)
    assert tree.words() == (1, 1, 2, 2, 0)


def test_a_given_vocabulary_is_used(tmp_path: Path) -> None:
    file = write(tmp_path, "a.ptb", "(S (A x) (B y))")
    [tree] = get_workload("tree-lstm").read(file, Vocabulary(["y", "q"]))
    assert tree.words() == (0, 1)


@pytest.mark.parametrize(
    ("name", "path", "count"),
    [
        ("tree-lstm", "gum_const/const", 4063),
        ("tree-lstm-childsum", "ud_english_ewt", 4078),
        ("bilstm-tagger", "ud_english_ewt", 4078),
        ("bilstm-tagger", "wikigold", 1696),
        ("bilstm-tagger-char", "wikigold", 1696),
        ("bilstm-tagger-char", "wnut17/wnut17train.conll", 3394),
        ("bilstm-tagger-char", "ud_english_ewt", 4078),
    ],
)
def test_published_data_are_read(
    shared_data: Path, name: str, path: str, count: int
) -> None:
    workload = get_workload(name)
    instances = workload.read(shared_data / path)
    assert len(instances) == count
    words = [word for each in instances for word in workload.words(each)]
    assert 0 <= min(words) <= max(words) < workload.vocabulary_size


def test_a_module_is_a_workload_and_its_options_are_documented() -> None:
    modules = {file.stem for file in Path(models.__file__).parent.glob("[!_]*.py")}
    assert {name.replace("-", "_") for name in WORKLOADS} == modules
    assert len(WORKLOADS) == len(modules) >= 12
    for build in WORKLOADS.values():
        for option in inspect.signature(build).parameters:
            assert re.search(rf"^ +{option}: ", build.__doc__ or "", re.M), build


def test_the_names_are_listed_without_importing_a_workload() -> None:
    code = (
        "import sys; from edbatch.models import WORKLOADS;"
        "assert 'tree-lstm' in WORKLOADS and len([*WORKLOADS]) == len(WORKLOADS);"
        "print([m for m in sys.modules if m.startswith('edbatch.models.')"
        " and not m.startswith('edbatch.models.shared')])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True)
    assert done.stdout == b"[]\n", done.stderr


def test_a_lookup_of_what_is_no_workload() -> None:
    assert "shared" not in WORKLOADS
    assert "tree_lstm" not in WORKLOADS
    with pytest.raises(KeyError):
        WORKLOADS["shared"]


@pytest.mark.parametrize("name", ["tree-lstm", "tree-lstm-2type", "tree-gru"])
def test_more_children_than_the_parameters_are_for(name) -> None:
    """Regression: additional children were silently dropped."""
    workload = get_workload(name, vocabulary_size=10)
    params = workload.init_params(jax.random.key(0), 4)
    [tree] = parse_trees("(S (A a) (B b) (C c))")
    tree = index_tree(tree, Vocabulary(["a", "b", "c"]))
    with pytest.raises(DataError, match=r"of at most 2 children but one has 3; .*ty=3"):
        eb.batch(workload.model).plan([tree], params=params)
