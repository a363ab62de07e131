import pytest

from edbatch.target import CPU


@pytest.mark.parametrize(("hidden", "small"), [("4", "yes"), ("96", "no")])
def test_a_tiny_run_prints_a_row(experiment, monkeypatch, capsys, hidden, small):
    monkeypatch.setattr(experiment.eb, "keep_memory", lambda: None)
    words = f"--workloads tree-lstm --hidden {hidden} --batch-size 16 --rounds 1"
    experiment.main(words.split())
    head, row = capsys.readouterr().out.splitlines()
    name, length, work, is_small, forward, gradient = row.split(" | ")
    assert tuple(head.split(" | ")) == experiment.COLUMNS
    assert (name, length, is_small) == ("tree-lstm", hidden, small)
    assert (int(work.replace(",", "")) <= CPU.small_product) == (small == "yes")
    for cell in (forward, gradient):
        times, share = cell.split(": ")
        one, other = map(float, times.split(", "))
        assert one > 0 and other > 0 and float(share) > 0
