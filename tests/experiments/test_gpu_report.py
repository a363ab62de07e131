import json

import pytest

WORDS = "--workloads tree-lstm --hidden 4 --batch-sizes 2 --rounds 1 --minibatches 1"


def test_a_tiny_run_writes_a_report_on_any_machine(run, tmp_path):
    found = run(
        *WORDS.split(), "--systems", "edbatch,exact", "--no-tests", "--out", tmp_path
    )
    assert found.returncode == 0, found.stderr
    report = json.loads((tmp_path / "gpu-report.json").read_text())
    assert report["machine"]["device"] and report["machine"]["jax"]
    [measured] = report["runs"]
    rows = {each["system"]: each for each in measured["result"]["rows"]}
    assert set(rows) == {"edbatch", "exact"}
    assert rows["edbatch"]["max_abs_error"] < 1e-4
    assert rows["edbatch"]["train"]["train_ms"] > 0
    text = (tmp_path / "gpu-report.md").read_text()
    assert "| tree-lstm | 4 | 2 | edbatch |" in text
    assert "Nothing is missing." in text
    assert report["profile"], report["no_profile"]
    assert "<rect" in (tmp_path / "gpu-profile.svg").read_text()


def test_what_takes_too_long_is_named(experiment, parse):
    arguments = parse(WORDS.split())
    late = experiment.bench("tree-lstm", 4, 2, arguments, "", 0.0)
    assert late.result is None and late.why
    machine = {"device": "d", "platform": "gpu", "cpus": 1, "jax": "1", "python": "3"}
    report = {
        "machine": machine,
        "tests": {"output": ""},
        "seconds": 1.0,
        "profile": False,
        "no_profile": "there was no time",
    }
    text = experiment.markdown(report, [late])
    assert f"- tree-lstm, 4, 2: {late.why}" in text
    assert "There is no profile: there was no time" in text


@pytest.mark.parametrize("process", ["/device:GPU:0", "/host:CPU"])
def test_a_picture_has_a_bar_per_event_of_the_device(experiment, process):
    events = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": process}},
        {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 5.0, "dur": 2.0, "name": "fusion.1"},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 8.0, "dur": 1.0, "name": "a<b"},
        {"ph": "X", "pid": 2, "tid": 1, "ts": 0.0, "dur": 9.0, "name": "launch"},
    ]
    picture = experiment.draw(events)
    assert picture.count("<rect") == (2 if "device" in process else 3)
    assert "a&lt;b 1.0" in picture
    assert experiment.draw([]).startswith("<svg")
