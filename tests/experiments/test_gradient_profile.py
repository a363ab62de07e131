from collections import Counter

import pytest


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()


@pytest.mark.parametrize(
    "words", [[], ["--tables", "embedding"], ["--compute-dtype", "bfloat16"]]
)
def test_a_tiny_run(experiment, parse, capsys, words):
    words = [*words, "--hidden", "8", "--batch-size", "2", "--rounds", "1"]
    experiment.main(parse(words))
    head, forward, gradient, empty, *kinds = capsys.readouterr().out.splitlines()
    assert head.startswith("tree-lstm, hidden 8, ") and "GFLOP/s" in head
    assert forward.startswith("forward ") and gradient.startswith("value and gradient")
    assert not empty
    names = [each.split("  ")[0] for each in kinds]
    assert {"products", "clearing", "loops", experiment.OTHER} <= {*names}
    times = [float(each.split()[-2]) for each in kinds]
    assert times == sorted(times, reverse=True)


def test_what_runs_inside_a_loop_is_not_the_loops_time(experiment):
    def event(name, ts, dur):
        return {"name": name, "ts": ts, "dur": dur}

    events = [
        event("while", 0.0, 10.0),
        event("dot.1", 1.0, 4.0),
        event("dot.1", 5.0, 2.0),
        event("add", 12.0, 3.0),
    ]
    found = experiment.own_times(events)
    assert found == {"while": 4.0, "dot.1": 6.0, "add": 3.0}


def test_kinds_of_operations(experiment):
    times = {
        "dot.3": 5.0,
        "ynn_fusion": 2.0,
        "wrapped_broadcast.7": 1.0,
        "broadcast_select_fusion": 0.5,
        "add_dynamic-update-slice_fusion": 0.25,
        "bitcast_gather_fusion.1": 0.125,
        "tanh_multiply_fusion": 3.0,
    }
    assert dict(experiment.shares(Counter(times))) == {
        "products": 7.0,
        experiment.OTHER: 3.5,
        "clearing": 1.0,
        "writing rows": 0.25,
        "reading rows": 0.125,
    }
