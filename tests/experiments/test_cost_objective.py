import numpy as np

from edbatch.policies import CostModel
from edbatch.schedule import Schedule
from edbatch.schedule.examples import tree


def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    words = ["--workloads", "mv-rnn", "--hidden", "3"]
    assert parse(words) == experiment.Arguments("mv-rnn", hidden=3)


class Fixed:
    """A policy with one fixed schedule, given by the type of each one-node batch."""

    def __init__(self, name, types):
        self.name = name
        ends = np.arange(len(types) + 1, dtype=np.int32)
        kinds = np.array(["ab".index(each) for each in types], np.int32)
        self.only = Schedule(ends[:-1], ends, kinds, name)

    def schedule(self, structure):
        return self.only


def test_count_and_cost_may_choose_differently(experiment):
    graph = tree("(a)b")
    costs = CostModel(graph.type_keys, (1,), ((1.0,), (9.0,)), (1, 1), (1.0, 1.0))
    policies = (Fixed("first", "abbb"), Fixed("few", "abb"), Fixed("cheap", "aaab"))
    for value, name in (
        (experiment.by_count, "few"),
        (experiment.by_cost(costs), "cheap"),
        (lambda *_: 0, "first"),
    ):
        assert experiment.Best(policies, value).schedule(graph).policy == name


def test_a_line_compares_only_where_choices_differ(experiment):
    outcome = experiment.Outcome(
        "w",
        batches=np.array([[10, 12], [8, 8]]),
        predicted_ms=np.array([[4.0, 3.0], [2.0, 2.0]]),
        measured_ms=np.array([[[4.0], [2.0]], [[3.0], [3.0]]]),
        error_percent=5.0,
    )
    words = experiment.line(outcome).split()
    assert words == [
        "w",
        "1/2",
        "9.00",
        "10.00",
        "3.00",
        "2.50",
        "3.50",
        "2.50",
        *words[8:],
    ]
    assert words[8:] == ["0.500", "5.0"]


def test_a_tiny_run(experiment, parse, capsys):
    words = "--workloads tree-lstm --hidden 4 --batch-size 1 --minibatches 1 --rounds 1"
    experiment.main(parse([*words.split(), "--width", "1"]))
    _, head, row = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "workload"
    assert row.split()[0] == "tree-lstm"


def test_a_tiny_run_of_trained_policies(experiment, parse, capsys):
    words = "--workloads tree-lstm-2type --hidden 4 --batch-size 2 --minibatches 1"
    experiment.main(parse([*words.split(), "--rounds", "1", "--train", "2"]))
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.split()[0] == "tree-lstm-2type"
