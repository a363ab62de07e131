import pytest


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    assert parse(["--experts", "1", "7"]) == experiment.Arguments(experts=("1", "7"))


@pytest.mark.parametrize("form", ["list", "indexed"])
def test_a_tiny_run(experiment, parse, form, capsys):
    words = f"--experts 5 --forms {form} --width 64 --batch-size 20 --rounds 2"
    [found] = experiment.main(parse(words.split()))
    assert found.error < 1e-5
    assert (found.form, found.experts, found.layers) == (form, 5, 2)
    assert found.ratio > 0
    assert f"| {form} | 5 | 2 |" in capsys.readouterr().out
