"""Tables in terminals of any width."""

import pytest

from edbatch.cli.console import print_table

HEADS = ("policy", "lower bound", "µs/node")
ROWS = [("agenda-remaining", 1234.5, 0.1234), ("greedy", 2.0, 0.5)]


def lines(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(HEADS, ROWS)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [42, 60])
def test_heads_fold_between_words_and_numbers_do_not(capsys, monkeypatch, columns):
    shown = lines(capsys, monkeypatch, columns)
    text = "\n".join(shown)
    for whole in (
        "agenda-remaining",
        "1,234.50",
        "0.1234",
        "lower",
        "bound",
        "µs/node",
    ):
        assert whole in text
    assert max(map(len, shown)) <= columns


@pytest.mark.parametrize("columns", [30, 41])
def test_where_there_is_no_room_nothing_is_cut_off(capsys, monkeypatch, columns):
    shown = lines(capsys, monkeypatch, columns)
    assert max(map(len, shown)) <= columns
    assert {line.rstrip()[-1] for line in shown} <= {*"┓┃┩│┘"}
