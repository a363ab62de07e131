import pytest


@pytest.mark.parametrize("more", [[], ["--larger"]])
def test_a_short_run_answers_usual_and_new(
    experiment, parse, capsys, monkeypatch, more
):
    monkeypatch.setattr(experiment, "HIDDEN", 4)
    monkeypatch.setattr(experiment, "MOST", 64)
    monkeypatch.setattr(experiment.sys, "setswitchinterval", lambda _: None)
    experiment.main(parse(["--seconds", "1", "--every-s", "0.4", *more]))
    found = {}
    for line in capsys.readouterr().out.splitlines():
        name, value = line.rsplit(maxsplit=1)
        found[name.strip()] = float(value)
    assert found["usual requests"] >= 1
    assert 1 <= found["new ones"] <= 3
    assert 0 < found["their mean, s"] <= found["the longest, s"]
