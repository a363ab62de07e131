from edbatch.policies import get_policy, train_policy
from edbatch.policies.smooth_bound.weights import BoundWeights


def test_a_tiny_run(run):
    words = ("--workloads", "tree-lstm-2type", "--batch-size", 8, "--minibatches", 2)
    done = run(*words)
    done.check_returncode()
    heads, row = done.stdout.splitlines()
    assert heads.split()[-6:] == ["+", "weights", "+", "table", "+", "guard"]
    name, *ratios = row.split()
    assert name == "tree-lstm-2type"
    greedy, _, _, table, guard = map(float, ratios)
    assert 1 <= guard <= min(greedy, table)


def test_parts_are_those_of_the_policy(experiment):
    arguments = experiment.Arguments(batch_size=4, minibatches=3)
    graphs = experiment.minibatches("lattice-lstm", arguments)
    assert len(graphs) == 3
    assert all(len(each.instance_nodes) == 4 for each in graphs)
    _, encoding, weighted, table, _ = experiment.parts("lattice-lstm", graphs)
    whole = get_policy("zoo:lattice-lstm")
    assert whole.weights != BoundWeights()
    assert table.batches == tuple(whole.schedule(g).num_batches for g in graphs)
    alone = train_policy(graphs, graphs, trials=1, generations=0, epsilon=0.0)
    assert encoding.mean_batches in [batches for _, batches in alone.training.curve]
    assert encoding.batches != weighted.batches


def test_the_policies_that_are_taken_apart_are_those_that_were_trained(experiment):
    for name in experiment.FILES:
        is_trained = bool(get_policy(f"zoo:{name}").states)
        # Both lattice models make graphs of the same structure.
        assert is_trained == (name in (*experiment.LEARNED, "lattice-gru"))
