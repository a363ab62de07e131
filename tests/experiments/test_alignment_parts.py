def test_a_tiny_run_prints_a_share_per_part(experiment, parse, capsys):
    words = "--workloads lattice-lstm --hidden 4 --batch-sizes 8 --minibatches 1"
    experiment.main(parse([*words.split(), "--effort", "0"]))
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["workload", "instances"]
    shares = [float(each.removesuffix("%")) for each in line.split()[3:]]
    schedule, aligned, no_chains, no_waiting, _, searched = shares
    assert schedule < no_chains < aligned <= searched
    assert no_waiting <= aligned
