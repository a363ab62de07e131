"""The output of commands in a terminal of 80 columns."""

import re

import pytest

TREE = ("--workload", "tree-lstm-2type")
COMMANDS = [
    ("workloads",),
    ("inspect", "zoo:lattice-lstm"),
    ("inspect", "zoo:neural-module-network"),
    ("inspect", "zoo:bilstm-tagger-char"),
    ("inspect", "--cell", "--workload", "lstm-nmt", "--hidden", 8),
    (
        *("compare", *TREE, "--policy", "zoo:tree-lstm-2type", "--exact"),
        *("--batch-size", 2, "--minibatches", 1, "--search-ms", 1),
    ),
    (
        *("compare", *TREE, "--policy", "zoo:tree-lstm-2type", "--memory"),
        *("--batch-size", 2, "--minibatches", 1, "--hidden", 8),
    ),
]


def words_of_cells(text):
    lines = [line for line in text.splitlines() if line[:1] in ("│", "┃")]
    return {word for line in lines for word in re.split(r"[│┃\s]+", line)}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: " ".join(map(str, each)))
def test_lines_fit_and_words_do_not_break(edbatch, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    narrow = edbatch(*command)
    assert narrow.exit_code == 0, narrow.output
    assert max(map(len, narrow.stdout.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "1000")
    whole = words_of_cells(edbatch(*command).stdout)
    changes = re.compile(r"[\d.,-]+")  # times differ from run to run
    broken = words_of_cells(narrow.stdout) - whole
    assert {each for each in broken if not changes.fullmatch(each)} == set()
