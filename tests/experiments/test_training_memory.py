import subprocess
import sys

import pytest


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    words = ["--nodes", "5", "7", "--remat"]
    assert parse(words) == experiment.Arguments(("5", "7"), remat=True)


@pytest.mark.parametrize("remat", [False, True])
def test_a_tiny_run(experiment, parse, capsys, monkeypatch, remat):
    words = ["--nodes", "100", "--hidden", "4", *(["--remat"] if remat else [])]
    started = []
    monkeypatch.setattr(
        subprocess, "run", lambda words, check: started.append((words, check))
    )
    experiment.main(parse(words))
    [(python, script, *rest)], [check] = zip(*started, strict=True)
    assert (python, check) == (sys.executable, True)
    assert script == experiment.__file__
    experiment.main(parse(rest))
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "nodes"
    nodes, taped, rematerialised, *_ = map(float, line.split())
    assert 100 <= nodes < 250
    assert rematerialised < taped
