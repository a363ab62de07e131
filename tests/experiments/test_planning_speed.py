import jax
import numpy as np

import edbatch as eb
from edbatch.models import get_workload


def test_a_tiny_run_prints_a_row_per_workload(experiment, parse, capsys):
    words = "--workloads tree-lstm,bilstm-tagger --hidden 4 --batch-size 3"
    words += " --recordings 6 --minibatches 3"
    experiment.main(parse(words.split()))
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["workload", "nodes"]
    assert [row.split()[0] for row in rows] == ["tree-lstm", "bilstm-tagger"]
    for row in rows:
        _, nodes, loop, between, *stages, _ = row.split()
        assert int(nodes) > 0
        assert float(loop) > 0
        assert float(between) > 0
        assert all(float(each) > 0 for each in stages[:2])
        assert len(stages) == len(experiment.STAGES)


def test_stages_make_the_plan_that_is_made(experiment):
    workload = get_workload("tree-lstm")
    params = workload.init_params(jax.random.key(0), 4)
    batched = eb.batch(workload.model, params=params)
    kept = batched.record_all(workload.sample(np.random.default_rng(0), 4))
    plan = batched.plan(kept)
    found, times = experiment.stage_times(batched, kept)
    assert set(times) == set(experiment.STAGES)
    assert found.plan.shape == plan.shape
    for own, expected in zip(
        jax.tree.leaves(found.with_externals(batched.graph(kept).externals)),
        jax.tree.leaves(plan),
        strict=True,
    ):
        np.testing.assert_array_equal(own, expected)
