def test_a_tiny_run_prints_a_line(experiment, parse, capsys):
    words = "--inside --models tree-lstm --hidden 4 --batch-size 4 --rounds 1"
    experiment.main(parse([*words.split(), "--no-warm-up-host"]))
    [line] = capsys.readouterr().out.splitlines()
    name, hidden, *times = line.split()
    assert (name, hidden) == ("tree-lstm", "4")
    assert len(times) == 5 and float(times[0]) > 0


def test_the_network_of_the_tests_is_found(experiment, parse):
    model, params, instances, hidden = experiment.load(
        "message-passing", parse(["--batch-size", "2"])
    )
    assert len(instances) == 4 and hidden == 32
    assert model(params, instances[0]).shape == ()
