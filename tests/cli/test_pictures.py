"""The pictures that commands write."""

from pathlib import Path

import pytest

from edbatch.cli.one_sentence import CommandError
from edbatch.cli.pictures import check_suffix, draw_comparison
from edbatch.plot import PlotError
from edbatch.policies import Agenda, Depth, compare
from edbatch.schedule.examples import tree

ROWS = compare([Depth(), Agenda()], [tree("((ab)cb)c")])


def test_a_comparison(tmp_path: Path) -> None:
    draw_comparison({1: ROWS}, tmp_path / "rows.svg", "batches of one tree")
    text = (tmp_path / "rows.svg").read_text()
    for shown in ("batches of one tree", "depth", "agenda", "lower bound"):
        assert f"<!-- {shown} -->" in text
    assert [*tmp_path.iterdir()] == [tmp_path / "rows.svg"]


def test_a_comparison_at_several_sizes(tmp_path: Path) -> None:
    table = {1: ROWS, 8: compare([Depth(), Agenda()], [tree("((ab)cb)c")] * 2)}
    draw_comparison(table, tmp_path / "sizes.svg", "one tree")
    text = (tmp_path / "sizes.svg").read_text()
    for shown in ("one tree", "depth", "instances per minibatch", "1", "8"):
        assert f"<!-- {shown} -->" in text


def test_no_file_is_left_of_a_picture_that_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(PlotError, match="has rows but '' has none"):
        draw_comparison({4: []}, tmp_path / "rows.svg", "nothing")
    assert not [*tmp_path.iterdir()]


def test_formats() -> None:
    check_suffix(None)
    check_suffix(Path("a.PNG"))
    with pytest.raises(CommandError, match=r"writes .png, .pdf, .svg files but this"):
        check_suffix(Path("a.jpg"))
    with pytest.raises(CommandError, match=r"did you mean '\.pdf'"):
        draw_comparison({1: ROWS}, Path("a.pfd"), "")
