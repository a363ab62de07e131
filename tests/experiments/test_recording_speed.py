import edbatch as eb
from edbatch.models import get_workload


def test_a_tiny_run_prints_a_row_per_workload(experiment, parse, capsys):
    words = "--workloads tree-lstm,lattice-lstm --hidden 4 --batch-size 3 --rounds 2"
    experiment.main(parse(words.split()))
    which, head, *rows = capsys.readouterr().out.splitlines()
    assert which.endswith("compiled" if eb.recording_is_compiled() else "in Python")
    assert head.split()[:2] == ["workload", "nodes"]
    for row in rows:
        *_, loop, _, _, own = row.split()
        assert float(own) < 5
        assert float(loop) > 0
    assert len(rows) == 2


def test_cells_are_put_back(experiment):
    model = get_workload("tree-lstm").model
    before = list(experiment.find_cells(model))
    names = {cell.name for _, cell in before}
    assert names == {"leaf", "compose", "classify"}
    with experiment.empty_cells(model, dict.fromkeys(names)):
        assert not list(experiment.find_cells(model))
    assert len(list(experiment.find_cells(model))) == len(before)
