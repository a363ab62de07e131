import numpy as np


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    assert parse(["--hidden", "8"]) == experiment.Arguments(hidden="8")


def test_a_line_holds_medians_and_their_ratios(experiment):
    times = np.array([[[4.0, 2.0, 9.0]], [[2.0, 1.0, 9.0]], [[1.0, 1.0, 3.0]]])
    line = experiment.line("tree-lstm", 8, times)
    assert line.split() == ["tree-lstm", "8", "4.00", "2.00", "1.00", "0.500", "2.000"]


def test_a_tiny_run_agrees_and_prints_a_line_per_model(experiment, parse, capsys):
    words = "--hidden 4 --batch-size 2 --minibatches 1 --rounds 1"
    experiment.main(parse(words.split()))
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["workload", "hidden"]
    assert [each.split()[:2] for each in lines] == [
        ["tree-lstm", "4"],
        ["bilstm-tagger", "4"],
    ]
