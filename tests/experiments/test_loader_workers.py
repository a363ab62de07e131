def test_a_tiny_run_prints_a_line_per_number_of_workers(experiment, capsys):
    words = ["--hidden", "4", "--batch-size", "2", "--minibatches", "2"]
    experiment.main([*words, "--workers", "1"])
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["workers", "0", "1"]
    assert all(float(line[1]) > 0 for line in lines[1:])
    assert lines[1][2] == "" and 100 < float(lines[2][2]) < 400
