import numpy as np
import pytest

from edbatch.memory_planner import PQTree


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    words = ["--kinds", "long", "--most-leaves", "30"]
    assert parse(words) == experiment.Arguments("long", most_leaves=30)


@pytest.mark.parametrize("n", [10, 60])
@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        ("short", True),
        ("medium", True),
        ("long", True),
        ("nested", True),
        ("refused", False),
    ],
)
def test_what_is_drawn(experiment, kind, accepted, n):
    drawn = experiment.DRAW[kind](np.random.default_rng(0), n, 10 * n)
    assert len(drawn.leaves) == drawn.start[-1]
    subsets = np.split(drawn.leaves, drawn.start[1:-1])
    tree = PQTree(n)
    assert all(tree.reduce(each) for each in subsets[: drawn.prepare])
    assert subsets[drawn.prepare :]
    for subset in subsets[drawn.prepare :]:
        assert tree.reduce(subset) == accepted
        assert len(subset) > 1


def test_some_of_what_is_mixed_is_accepted(experiment):
    drawn = experiment.DRAW["mixed"](np.random.default_rng(0), 60, 600)
    tree = PQTree(60)
    found = [tree.reduce(each) for each in np.split(drawn.leaves, drawn.start[1:-1])]
    assert any(found) and not all(found)


def test_a_tiny_run(experiment, parse, capsys):
    words = "--kinds short,refused --most-leaves 60 --size 2 --rounds 1"
    experiment.main(parse(words.split()))
    head, short, refused, _, small_head, *small = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["kind", "n", "m", "s"]
    assert short.split()[:2] == ["short", "60"]
    m, _, accepted = short.split()[2:5]
    assert accepted == m
    assert refused.split()[2:5] == ["40", "120", "0"]
    assert small_head.split() == ["n", "us", "per", "tree", "ns", "per", "leaf"]
    assert [each.split()[0] for each in small] == ["8", "64", "512"]
