import jax
import numpy as np

import edbatch as eb
from edbatch.models import get_workload

WORDS = "--workloads tree-lstm --hidden 4 --batch-size 2 --minibatches 2"


def test_a_tiny_run_prints_a_row_per_workload(experiment, capsys):
    experiment.main([*WORDS.split(), "--workers", "1", "--rounds", "2"])
    head, row = capsys.readouterr().out.splitlines()
    row = row.split(" | ")
    assert head.split(" | ") == list(experiment.COLUMNS)
    assert len(row) == len(experiment.COLUMNS)
    parts = [float(each) for each in row[1 : 1 + len(experiment.PARTS)]]
    total = float(row[1 + len(parts)])
    np.testing.assert_allclose(total, sum(parts), atol=0.1)
    assert total > 0


def test_parts_make_the_plan_that_is_made(experiment):
    workload = get_workload("tree-lstm")
    params = workload.init_params(jax.random.key(0), 4)
    batched = eb.batch(workload.model, params=params)
    kept = batched.record_all(workload.sample(np.random.default_rng(0), 4))
    expected = batched.plan(kept)
    clock = experiment.Clock()
    found = experiment.plan_in_parts(batched, batched.graph(kept), clock)
    assert found.shape == expected.shape
    for own, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_array_equal(own, other)
    timed = {name for name, times in clock.parts.items() if times}
    assert timed == set(experiment.PARTS) - {"receive", "number"}
