def test_a_tiny_run_prints_a_line_per_budget(experiment, parse, capsys):
    words = "--workloads tree-lstm --hidden 4 --batch-size 4 --budgets 3,0 --rounds 1"
    experiment.main(parse(words.split()))
    head, *lines = capsys.readouterr().out.splitlines()
    names = head.split()
    assert names[:5] == ["workload", "hidden", "budget", "loops", "chunks"]
    rows = [dict(zip(names, each.split(), strict=False)) for each in lines]
    assert [each["budget"] for each in rows] == ["3", "0"]
    assert int(rows[0]["loops"]) > int(rows[1]["loops"])
