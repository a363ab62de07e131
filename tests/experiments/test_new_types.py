def test_a_short_run_answers_known_and_new(experiment, parse, capsys, monkeypatch):
    monkeypatch.setattr(experiment, "HIDDEN", 4)
    monkeypatch.setattr(experiment.sys, "setswitchinterval", lambda _: None)
    experiment.main(parse(["--seconds", "1", "--every-s", "0.4"]))
    found = {}
    for line in capsys.readouterr().out.splitlines():
        name, value = line.rsplit(maxsplit=1)
        found[name.strip()] = float(value)
    assert found["requests of known shapes"] >= 1
    assert 1 <= found["requests of new shapes"] <= 3
    assert 0 < found["their mean, s"] <= found["the longest, s"]
