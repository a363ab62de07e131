import numpy as np


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    assert parse(["--large", "7"]) == experiment.Arguments(large=7)


def test_the_tables_own_gradient_is_left_aside(experiment):
    times = np.array([10.0, 30.0, 2.0, 20.0])[:, None, None]
    *_, small, large, last = experiment.report(experiment.Arguments(), times)
    assert small.split() == ["1000", "10.00", "2.00", "8.00"]
    assert large.split() == ["50000", "30.00", "20.00", "10.00"]
    assert "takes +25 %" in last


def test_a_tiny_run(experiment, parse):
    words = "--small 9 --large 90 --hidden 4 --batch-size 2 --minibatches 1 --rounds 2"
    times = experiment.measure(parse(words.split()))
    assert times.shape == (4, 1, 2)
    assert (times > 0).all()
