"""Tests metrics in CSV files and in TensorBoard event files."""

import csv
import math
import sys

import pytest
from event_files import events, scalars

from edbatch.errors import MetricLogError, MissingTensorBoardError
from edbatch.metric_log import MetricLog


def rows(path):
    with open(path, newline="") as file:
        return [*csv.DictReader(file)]


def values(path, name):
    return [(int(row["step"]), row[name]) for row in rows(path)]


def test_a_row_per_step_and_a_column_per_metric(tmp_path):
    path = tmp_path / "metrics.csv"
    with MetricLog(path) as log:
        log.write(1, {"loss": 0.1})
        assert values(path, "loss") == [(1, "0.1")]  # written at once
        log.write(2, {"loss": 1e-30, "held_out/loss": math.inf})
        log.write(3, {"held_out/loss": 3})
    assert [*rows(path)[0]] == ["step", "seconds", "loss", "held_out/loss"]
    assert values(path, "loss") == [(1, "0.1"), (2, "1e-30"), (3, "")]
    assert values(path, "held_out/loss") == [(1, ""), (2, "inf"), (3, "3.0")]
    seconds = [float(row["seconds"]) for row in rows(path)]
    assert seconds == sorted(seconds)


def test_names_may_have_commas_and_quotes(tmp_path):
    path = tmp_path / "metrics.csv"
    name = 'of "a, b"'
    with MetricLog(path) as log:
        log.write(1, {name: 1.0})
        log.write(2, {name: 2.0, "more": 3.0})
    assert values(path, name) == [(1, "1.0"), (2, "2.0")]


def test_a_new_log_replaces_the_file(tmp_path):
    path = tmp_path / "metrics.csv"
    for value in (1.0, 2.0):
        with MetricLog(path) as log:
            log.write(1, {"loss": value})
    assert values(path, "loss") == [(1, "2.0")]


@pytest.mark.parametrize(("last_step", "kept"), [(None, 3), (2, 2), (0, 0), (9, 3)])
def test_a_run_that_goes_on_keeps_its_rows(tmp_path, last_step, kept):
    path = tmp_path / "metrics.csv"
    with MetricLog(path) as log:
        for step in (1, 2, 3):
            log.write(step, {"loss": step / 2})
    with MetricLog(path, resume=True, last_step=last_step) as log:
        log.write(4, {"loss": 9.0, "other": 1.0})
    assert values(path, "loss") == [
        *[(1, "0.5"), (2, "1.0"), (3, "1.5")][:kept],
        (4, "9.0"),
    ]
    seconds = [float(row["seconds"]) for row in rows(path)]
    assert seconds == sorted(seconds)


def test_a_part_of_a_line_is_dropped(tmp_path):
    path = tmp_path / "metrics.csv"
    with MetricLog(path) as log:
        log.write(1, {"loss": 0.5})
        log.write(2, {"loss": 0.25})
    path.write_bytes(path.read_bytes()[:-3])  # as if killed while writing
    with MetricLog(path, resume=True) as log:
        log.write(2, {"loss": 0.25})
    assert values(path, "loss") == [(1, "0.5"), (2, "0.25")]


def test_to_resume_without_a_file_begins_one(tmp_path):
    with MetricLog(tmp_path / "metrics.csv", resume=True, last_step=3) as log:
        log.write(4, {"loss": 1.0})
    assert values(log.path, "loss") == [(4, "1.0")]


def test_event_files_hold_the_same(tmp_path):
    folder = tmp_path / "events"
    with MetricLog(tmp_path / "metrics.csv", folder) as log:
        log.write(1, {"loss": 0.5})
        log.write(2, {"loss": 0.25, "held_out/accuracy": 0.75})
    assert scalars(folder) == [
        ("loss", 1, 0.5),
        ("loss", 2, 0.25),
        ("held_out/accuracy", 2, 0.75),
    ]


def test_tensorboard_is_told_where_a_run_goes_on(tmp_path):
    from tensorboardX.proto.event_pb2 import SessionLog

    folder = tmp_path / "events"
    with MetricLog(tmp_path / "m.csv", folder, resume=True, last_step=7) as log:
        log.write(8, {"loss": 0.5})
    starts = [
        each.step
        for each in events(folder)
        if each.session_log.status == SessionLog.START
    ]
    assert starts == [8]  # purges entries of later steps


def test_without_tensorboardx_the_file_of_an_earlier_run_stays(tmp_path, monkeypatch):
    path = tmp_path / "metrics.csv"
    with MetricLog(path) as log:
        log.write(1, {"loss": 0.5})
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingTensorBoardError, match=r"which is not installed"):
        MetricLog(path, tmp_path)
    assert values(path, "loss") == [(1, "0.5")]


def test_without_tensorboardx(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingTensorBoardError, match=r"pip install 'edbatch\[tenso"):
        MetricLog(tmp_path / "metrics.csv", tmp_path)
    with MetricLog(tmp_path / "metrics.csv") as log:
        log.write(1, {"loss": 0.5})


@pytest.mark.parametrize(
    "text",
    [
        *("", "a,b\n1,2\n", "step,seconds\nx,0\n", "step,seconds\n1,2,3\n"),
        *("step,seconds\n1,x\n", "step,seconds\n1,nan\n", "step,seconds,a\n1,2,\0\n"),
    ],
)
def test_files_of_something_else_are_not_added_to(tmp_path, text):
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    with pytest.raises(MetricLogError, match="name another file, or start a new one"):
        MetricLog(path, resume=True)
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["step", "seconds"])
def test_names_of_other_columns_are_refused(tmp_path, name):
    path = tmp_path / "metrics.csv"
    with MetricLog(path) as log:
        log.write(1, {"loss": 0.5})
        with pytest.raises(
            MetricLogError,
            match=rf"the columns step and seconds are reserved, .* named '{name}';"
            rf" choose another name, for example 'train/{name}'$",
        ):
            log.write(2, {"loss": 0.25, "more": 1.0, name: 0.125})
        log.write(3, {"loss": 0.25, f"train/{name}": 0.125})
    with MetricLog(path, resume=True):
        assert [*rows(path)[0]] == ["step", "seconds", "loss", f"train/{name}"]
    assert values(path, "loss") == [(1, "0.5"), (3, "0.25")]


def test_a_folder_that_is_missing(tmp_path):
    with pytest.raises(MetricLogError, match="existing, writable folder"):
        MetricLog(tmp_path / "no" / "metrics.csv")
