import pytest

import edbatch as eb


def found(devices, ms):
    return {"devices": devices, "nodes": 100, "ms": ms, "losses": [1.0]}


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    assert parse(["--devices", "1,4"]) == experiment.Arguments(devices="1,4")


def test_an_unknown_measure_is_named(experiment):
    known = "forward, gradient, rows, training, inference"
    with pytest.raises(SystemExit, match=f"{known}, not time"):
        experiment._transform("time")


def test_lines_hold_medians_and_their_ratios(experiment):
    measured = [
        [found(1, 10.0), found(1, 20.0), found(1, 40.0)],
        [found(2, 5.0), found(2, 8.0), found(2, 40.0)],
    ]
    one, two = experiment.lines("tree-lstm", "64", measured)
    assert one.split() == ["tree-lstm", "64", "1", "20.0", "5,000", "1.00"]
    assert two.split() == ["tree-lstm", "64", "2", "8.0", "12,500", "2.00"]


def test_losses_that_differ_end_the_script(experiment, parse, monkeypatch):
    def measure(devices, _):
        return found(devices, 1.0) | {"losses": [float(devices)]}

    monkeypatch.setattr(experiment, "measure_elsewhere", measure)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        experiment.compare(parse(["--hidden", "4"]))


@pytest.mark.parametrize("measure", ["training", "inference"])
def test_the_whole_data_set_is_run_in_each_round(
    experiment, parse, monkeypatch, measure
):
    seen = []

    class Loader(eb.Loader):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            seen.append(self)

    monkeypatch.setattr(eb, "Loader", Loader)
    words = "--hidden 4 --batch-size 2 --minibatches 3 --rounds 2 --measure"
    found = experiment.measure(parse([*words.split(), measure]))
    [loader] = seen
    assert loader.epoch == 3 and len(loader) == 3  # one to warm up
    assert len(found["losses"]) == 3 and found["ms"] > 0


def test_a_tiny_run_on_one_device_and_on_two(experiment, parse, capfd, monkeypatch):
    measured = []

    def compare(arguments):
        measured.extend(compare_devices(arguments))
        return measured

    compare_devices = experiment.compare
    monkeypatch.setattr(experiment, "compare", compare)
    words = "--hidden 4 --batch-size 4 --minibatches 1 --rounds 1 --repeats 1"
    experiment.main(parse([*words.split(), "--measure", "rows"]))
    head, one, two = capfd.readouterr().out.splitlines()
    assert head.split()[:3] == ["workload", "hidden", "devices"]
    assert [one.split()[2], two.split()[2]] == ["1", "2"]
    [[one], [two]] = measured
    assert one["nodes"] == two["nodes"] > 0  # the same minibatch
