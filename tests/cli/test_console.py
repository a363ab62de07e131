"""Output tables in terminals of any width, and progress bars that are interrupted."""

import io
import signal

import pytest

from edbatch.cli.console import print_fields, print_out, print_table, say, tracked

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


@pytest.mark.parametrize("columns", [20, 30, 41])
def test_where_there_is_no_room_nothing_is_cut_off(capsys, monkeypatch, columns):
    shown = lines(capsys, monkeypatch, columns)
    assert max(map(len, shown)) <= columns
    assert {line.rstrip()[-1] for line in shown} <= {*"┓┃┩│┘"}


@pytest.mark.parametrize(("columns", "width"), [(0, 80), (1, 20), (19, 20)])
def test_what_cannot_be_a_width_is_none(capsys, monkeypatch, columns, width):
    found = lines(capsys, monkeypatch, columns)
    assert found == lines(capsys, monkeypatch, width)
    assert "greedy" in "".join(found) or columns
    say("Note")
    assert capsys.readouterr().err == "Note\n"


def test_what_a_terminal_would_obey_is_written_as_an_escape(capsys):
    text = "a\x1b[2J\x9b\ud800\tb\r"
    say(text)
    print_out(text)
    print_table(HEADS, [(text, 1, 2)], title=text)
    print_fields([("name", text)])
    found = capsys.readouterr()
    for each in (found.err, *found.out.splitlines()[:1]):
        assert each.rstrip() == r"a\x1b[2J\x9b\ud800\tb\r"
    assert found.out.count(r"\x1b[2J\x9b\ud800") == 4
    assert not {*"\x1b\x9b\ud800\t\r"} & {*found.out}


WIDE = [
    ("cells first come", 9.76, 109.65, 13284, "4.5e-08"),
    ("agenda, 32", 1.39, 1.42, 5.25, "5.4e-07"),
]
WIDE_HEADS = ("policy", "compiles", "per node", "goodput / limit", "max error")
WHOLE = {
    *("cells first come", "agenda, 32", "9.76", "109.65", "13,284", "4.5e-08"),
    *("1.39", "1.42", "5.25", "5.4e-07", "compiles", "goodput"),
}


@pytest.mark.parametrize("columns", [*range(38, 90, 3)])
def test_no_word_and_no_number_breaks(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(WIDE_HEADS, WIDE)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= columns
    assert {each for each in WHOLE if each not in text} == set()


def test_a_table_that_is_too_wide_first_loses_its_frame(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "62")
    print_table(WIDE_HEADS, WIDE)
    assert "┃" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "58")
    print_table(WIDE_HEADS, WIDE)
    text = capsys.readouterr().out
    assert "┃" not in text
    assert text.count("policy") == 1


def test_then_it_is_printed_in_parts_with_the_first_column_in_each(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "46")
    print_table(WIDE_HEADS, WIDE, "one title")
    text = capsys.readouterr().out
    assert text.count("cells first come") == text.count("policy") == 2
    assert text.count("one title") == text.count("13,284") == 1


def test_long_names_break_only_where_there_is_no_room(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    print_table(
        ("cell", "products", "packed"),
        [("attend@attention/17", "1 of 8 by 8x8, 1 of 16 by 16x8, 1 of 8 by 8x9", "2")],
    )
    text = capsys.readouterr().out
    assert "attend@attention/17" in text
    assert max(map(len, text.splitlines())) <= 60


class Pressed(io.StringIO):
    """A stream whose writer presses Ctrl-C at the end of a progress bar's text."""

    def write(self, text):
        count = super().write(text)
        if "2/2" in text:
            signal.raise_signal(signal.SIGINT)
        return count


def test_ctrl_c_leaves_the_line_of_a_progress_bar_whole(monkeypatch):
    stream = Pressed()
    monkeypatch.setattr("sys.stderr", stream)
    with pytest.raises(KeyboardInterrupt):
        list(tracked([1, 2], "Recording"))
    assert stream.getvalue().endswith("\n")
