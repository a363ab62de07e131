def test_arguments(experiment, parse):
    assert parse([]) == experiment.Arguments()
    assert parse(["--calls", "8"]) == experiment.Arguments(calls=8)


def test_a_tiny_run_prints_a_line_per_number_of_arrays(experiment, capsys):
    experiment.main(["--arrays", "1,3", "--calls", "2", "--rounds", "1"])
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "arrays"
    assert [line.split()[0] for line in lines] == ["1", "3"]
    for line in lines:
        _, plain, tiered, more = map(float, line.split())
        assert abs(tiered - plain - more) < 0.11
