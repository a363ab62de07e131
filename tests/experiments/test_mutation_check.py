import pytest


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    assert parse(["--names", "no-fence", "--rest"]).rest


def test_each_has_its_place_and_its_tests(experiment):
    assert len(experiment.MUTATIONS) >= 30
    assert len({each.name for each in experiment.MUTATIONS}) == len(
        experiment.MUTATIONS
    )
    for each in experiment.MUTATIONS:
        text = (experiment.ROOT / each.path).read_text(encoding="utf-8")
        assert each.apply(text) != text
        assert all((experiment.ROOT / file).exists() for file in each.tests.split())


def test_a_text_that_is_gone_is_named(experiment):
    with pytest.raises(SystemExit, match="no-fence: its text occurs 0 times in"):
        [no_fence] = [each for each in experiment.MUTATIONS if each.name == "no-fence"]
        no_fence.apply("")


def test_an_unknown_name(experiment, parse):
    with pytest.raises(SystemExit, match="There is no mutation fence"):
        experiment.main(parse(["--names", "fence"]))
