"""Labels keep their numbers on other data and with saved parameters."""

import numpy as np
import pytest
from typer.testing import CliRunner

from edbatch.cli import params_file
from edbatch.cli.main import app
from edbatch.data import (
    LabelledVocabulary,
    ParsedSentence,
    Program,
    Vocabulary,
)
from edbatch.errors import DataError, WorkloadError
from edbatch.models import get_workload

COLUMNS = ("a DET\nb NOUN\nc NOUN\n", "a DET\nd DET\nb NOUN\n")
TAGGERS = ["bilstm-tagger", "bilstm-tagger-char", "lattice-lstm", "lattice-gru"]


def conllu(*words):
    """A sentence whose first word is the root and the head of all other words."""
    lines = []
    for k, (word, tag, relation) in enumerate(words, start=1):
        head = 0 if k == 1 else 1
        lines.append(f"{k}\t{word}\t_\t{tag}\t_\t_\t{head}\t{relation}\t_\t_")
    return "\n".join(lines) + "\n\n"


FIRST = ("barks", "VERB", "root"), ("dog", "NOUN", "nsubj"), ("cat", "NOUN", "obj")
CONLLU = (
    conllu(*FIRST) + conllu(("cat", "NOUN", "root"), ("dog", "NOUN", "nsubj")),
    conllu(*FIRST) + conllu(*[("a", "VERB", "obj")] * 5),
)


def write(folder, name, contents):
    files = []
    for k, text in enumerate(contents):
        files.append(folder / f"{k}{name}")
        files[-1].write_text(text)
    return files


@pytest.mark.parametrize("name", TAGGERS)
def test_tags_have_the_numbers_of_the_vocabulary(tmp_path, name):
    train, test = write(tmp_path, ".txt", COLUMNS)
    options = {}
    if name.startswith("lattice"):
        options["words"] = tmp_path / "words"
        options["words"].write_text("ab\nbc\n")
    workload = get_workload(name, **options)
    vocabulary = workload.vocabulary(workload.read_text(train))
    assert vocabulary.labels == {"tags": Vocabulary(["NOUN", "NOUN", "DET"])}
    [found] = workload.read(test, vocabulary)
    assert tuple(found.tags) == (2, 2, 1)


@pytest.mark.parametrize("name", ["transition-parser", "tree-decoder"])
def test_parses_have_the_numbers_of_the_vocabulary(tmp_path, name):
    train, test = write(tmp_path, ".conllu", CONLLU)
    workload = get_workload(name)
    vocabulary = workload.vocabulary(workload.read_text(train))
    first, _ = workload.read(test, vocabulary)
    assert first == workload.read(train)[0]
    assert first != workload.read(test)[0]


@pytest.mark.parametrize("name", ["bilstm-tagger", "transition-parser"])
def test_a_vocabulary_without_labels_is_refused(name):
    workload = get_workload(name)
    with pytest.raises(WorkloadError, match=r"takes a LabelledVocabulary but this is"):
        workload.read("a", Vocabulary("a"))
    other = LabelledVocabulary(Vocabulary("a"), {"classes": Vocabulary("a")})
    with pytest.raises(WorkloadError, match=r"labels tags.* but this vocabulary has c"):
        workload.read("a", other)


def run(*arguments):
    found = CliRunner().invoke(app, ["run", *map(str, arguments)])
    return found.exit_code, found.stderr


def test_saved_parameters_know_the_labels(tmp_path):
    """Both files begin with the same sentence."""
    train, test = write(tmp_path, ".conllu", CONLLU)
    common = ["--workload", "transition-parser", "--hidden", 8, "--policy", "depth"]
    saved, results = tmp_path / "p.npz", []
    for data, params in (train, ["--save-params", saved]), (test, ["--params", saved]):
        out = tmp_path / f"{data.stem}.npz"
        code, error = run(*common, "--data", data, "--out", out, *params)
        assert code == 0, error
        with np.load(out) as content:
            results.append({name: content[name] for name in content.files})
    one, other = results
    steps = int(one["output.lengths"][0])  # of the first sentence
    assert 3 <= steps == other["output.lengths"][0] < len(one["output"])
    np.testing.assert_allclose(one["output"][:steps], other["output"][:steps], 1e-5)
    arrays, vocabulary = params_file.read_arrays(saved)
    params_file.save_arrays(
        tmp_path / "old.npz", arrays | {"vocabulary": np.array(vocabulary.words.tokens)}
    )
    code, error = run(*common, "--data", test, "--params", tmp_path / "old.npz")
    assert code == 2 and "does not number the words and tags and relations" in error


def test_served_labels():
    served = pytest.importorskip("edbatch.cli.served_workload")
    workload = get_workload("transition-parser")
    tags = "NOUN", "NOUN", "VERB"
    text = ParsedSentence(("dogs", "cats", "bark"), tags, (3, 3, 0), ("a", "b", "root"))
    vocabulary = workload.vocabulary([text])
    one, other = (
        served.numbered(workload, vocabulary, ParsedSentence(*each, (2, 0), ("a", "a")))
        for each in (
            (("dogs", "bark"), ("NOUN", "VERB")),
            (("bark", "dogs"), ("VERB", "NOUN")),
        )
    )
    assert one.tags == other.tags[::-1] == (1, 2)
    wrong = ParsedSentence((3, 1), (999, 1), (2, 0), (1, 0))
    with pytest.raises(DataError, match=r"tags are numbers from 0 to 17 .*found 999"):
        served.numbered(workload, vocabulary, wrong)
    wrong = ParsedSentence((3, 1), (1, "NOUN"), (2, 0), (1, 0))
    with pytest.raises(DataError, match=r"tags are numbers .*found 'NOUN'"):
        served.numbered(workload, None, wrong)


def test_a_served_program_without_values():
    served = pytest.importorskip("edbatch.cli.served_workload")
    program = Program(["scene", "count"], [(), (0,)], [None, None])
    workload = get_workload("neural-module-network")
    assert served.numbered(workload, None, program) == program
    assert len(workload.vocabulary([program])) == 1
