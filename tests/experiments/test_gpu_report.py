import json
from dataclasses import replace

import pytest

WORDS = "--workloads tree-lstm --hidden 4 --batch-sizes 2 --rounds 1 --minibatches 1"


def test_a_tiny_run_writes_a_report_on_any_machine(run, tmp_path):
    """Of the installed package: Numba would compile all kernels of the sources."""
    words = [*WORDS.split(), "--systems", "edbatch,exact", "--no-tests"]
    found = run(*words, "--no-sources", "--seconds", 3000, "--out", tmp_path)
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


def test_the_sources_are_importable_without_an_installation(experiment, tmp_path):
    path = experiment.importable(tmp_path)
    code = (
        "import edbatch, edbatch.envs; print(edbatch.__path__, edbatch.envs.__path__)"
    )
    status, out, err = experiment.python(["-c", code], path, 300)
    assert status == 0, err
    assert out.count(str(tmp_path)) == 2


def test_what_takes_too_long_is_named(experiment, parse):
    arguments = parse(WORDS.split())
    [task] = experiment.tasks(parse([*WORDS.split(), "--systems", "edbatch"]), "cpu")
    late = experiment.bench(task, arguments, "", 0.0)
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
    assert f"- tree-lstm, 4, 2 (edbatch): {late.why}" in text
    assert text.count("| not measured |") == 4
    assert "There is no profile: there was no time" in text


@pytest.mark.parametrize("process", ["/device:GPU:0", "/host:CPU"])
def test_a_picture_has_a_bar_per_event_of_the_device(experiment, process):
    events = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": process}},
        {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "/host:CPU"}},
        {
            "ph": "M",
            "pid": 1,
            "tid": 1,
            "name": "thread_name",
            "args": {"name": "Stream #1(<main>)"},
        },
        {"ph": "X", "pid": 1, "tid": 1, "ts": 5.0, "dur": 2.0, "name": "fusion.1"},
        {"ph": "X", "pid": 1, "tid": 1, "ts": 8.0, "dur": 1.0, "name": "a<b"},
        {"ph": "X", "pid": 2, "tid": 1, "ts": 0.0, "dur": 9.0, "name": "launch"},
    ]
    picture = experiment.draw(events)
    assert picture.count("<rect") == (2 if "device" in process else 3)
    assert "a&lt;b 1.0" in picture
    assert ">Stream #1(&lt;main>)</text>" in picture
    assert ">fusion: 0.002 ms in 1</text>" in picture
    assert experiment.draw([]).startswith("<svg")


def test_a_picture_leaves_out_the_thread_that_ends_the_trace(experiment):
    def named(tid, name):
        own = {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name"}
        return own | {"args": {"name": name}}

    events = [
        named(1, "python"),
        named(2, "tf_XLAExecute"),
        {"ph": "X", "pid": 1, "tid": 1, "ts": 0.0, "dur": 9e4, "name": "stop"},
        {"ph": "X", "pid": 1, "tid": 2, "ts": 2.0, "dur": 3.0, "name": "dot.2"},
        {"ph": "X", "pid": 1, "tid": 2, "ts": 1.0, "dur": 6.0, "name": "while"},
    ]
    picture = experiment.draw(events)
    assert picture.count("<rect") == 2 and "stop" not in picture
    assert picture.index("<title>while") < picture.index("<title>dot.2")
    assert experiment.draw(events[:3]).count("<rect") == 1


def test_the_busiest_row_of_a_picture_is_the_first(experiment):
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": k, "dur": 0.1, "name": f"short.{k}"}
        for k in range(3)
    ]
    events += [{"ph": "X", "pid": 1, "tid": 2, "ts": 0, "dur": 1e3, "name": "long"}]
    picture = experiment.draw(events)
    assert picture.index("<title>long") < picture.index("<title>short")


def test_what_the_goals_are_about_comes_first(experiment, parse):
    todo = experiment.tasks(parse([]), "gpu")
    assert [(e.workload, e.hidden, e.batch_size, e.on_cpu) for e in todo[:3]] == [
        ("tree-lstm", 256, 64, False),
        ("tree-lstm", 1024, 256, False),
        ("tree-lstm", 256, 64, True),
    ]
    assert len(set(todo)) == len(todo) == 12 + 1 + 12
    slow = [each for each in todo if "unbatched" in each.systems]
    assert slow == todo[13:]
    assert all(each.rounds == each.minibatches == 1 for each in slow)
    once = experiment.tasks(parse(["--rounds", "1", "--minibatches", "4"]), "gpu")
    assert {each.minibatches for each in once if each not in slow} == {None}
    assert not any(each.on_cpu for each in experiment.tasks(parse([]), "cpu"))


def test_what_takes_too_long_is_tried_without_gradients(experiment, parse, monkeypatch):
    clock, tried = [60.0], []

    def bench(task, arguments, path, seconds):
        tried.append(task)
        needed = {"edbatch": 80.0 if task.train else 2.0}.get(task.systems, 0.5)
        clock[0] -= min(needed, seconds)
        why = experiment.LATE if needed > seconds else ""
        return experiment.Run(task, needed, None, why)

    monkeypatch.setattr(experiment, "bench", bench)
    arguments = parse([*WORDS.split(), "--systems", "edbatch,unbatched"])
    todo = experiment.tasks(arguments, "gpu")
    assert [each.train for each in todo] == [True, False, True]
    experiment.bench_all(todo, arguments, "", lambda: clock[0])
    again = replace(todo[0], train=False)
    assert tried == [*todo[:2], again, todo[2]] and clock[0] > 0


def row(system, forward_ms, percent):
    nothing = dict.fromkeys(("ratio_to_exact", "compile_s", "max_abs_error", "train"))
    own = {"system": system, "forward_ms": forward_ms, "percent_of_peak": percent}
    return nothing | own | {"compiles": 1}


def test_goals_are_ratios_of_what_was_measured(experiment, parse):
    arguments = parse(["--workloads", "tree-lstm", "--systems", "edbatch,scan,levels"])
    runs = []
    for task in experiment.tasks(arguments, "gpu"):
        times = {"edbatch": 2.0 if not task.on_cpu else 12.0, "scan": 50.0}
        if not task.on_cpu and task.hidden == 256:
            times["levels"] = 3.0
        rows = [row(system, ms, task.hidden / 20) for system, ms in times.items()]
        runs.append(experiment.Run(task, 1.0, {"rows": rows, "left_out": {}}))
    machine = {"device": "d", "platform": "gpu", "cpus": 1, "jax": "1", "python": "3"}
    report = {"machine": machine, "tests": {"output": ""}, "seconds": 1.0}
    text = experiment.markdown(report | {"profile": True}, runs)
    assert "| 5 times as fast | 6 times as fast |" in text
    assert "| 40 % | 51.2 % |" in text
    assert "| 10 times as fast | 25 times as fast |" in text
    assert "| 2 times as fast | 1.5 times as fast |" in text
    assert "edbatch on two CPU cores | 12 |" in text
