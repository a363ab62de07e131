import pytest


@pytest.mark.parametrize("model", ["tree-lstm", "stack-3", "experts-3"])
def test_a_tiny_run_prints_a_line(experiment, parse, capsys, model):
    words = "--inside --passes forward --tiers coarse --hidden 4 --batch-size 4"
    experiment.main(parse([*words.split(), "--models", model]))
    [line] = capsys.readouterr().out.splitlines()
    name, way, tier, *numbers = line.split()
    assert (name, way, tier) == (model, "forward", "coarse")
    loops, equations, distinct, *_ = map(float, numbers)
    assert loops >= 1 and equations >= distinct > 10


def test_passes_are_two(experiment, parse):
    with pytest.raises(SystemExit, match="forward or gradient, but this is 'forwrd'"):
        experiment.main(parse(["--inside", "--passes", "forwrd"]))
