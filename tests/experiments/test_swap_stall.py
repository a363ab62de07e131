def test_a_tiny_run_prints_each_part(experiment, parse, capsys):
    words = "--models tree-lstm --hidden 4 --batch-size 2 --rounds 3"
    experiment.main(parse(words.split()))
    head, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and head.endswith("longest ms")
    counts = {line[23:49].strip(): int(line[49:56]) for line in lines}
    assert counts[experiment.BEFORE] >= 1
    assert counts[experiment.COMPILING] + counts[experiment.TRACING] >= 1
    assert counts[experiment.AFTER] == 3
