import jax
import numpy as np

import edbatch as eb
from edbatch.models import get_workload


def test_a_tiny_run_prints_a_row_per_workload(experiment, parse, capsys):
    words = "--workloads tree-lstm,bilstm-tagger --hidden 4 --batch-size 3 --rounds 2"
    experiment.main(parse(words.split()))
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "workload"
    assert [row.split()[0] for row in rows] == ["tree-lstm", "bilstm-tagger"]
    assert rows[0].split()[-1] == "schedule"  # trees are not aligned
    assert all(float(row.split()[-2]) > 0 for row in rows)


def test_plans_of_other_layouts_are_other_work(experiment):
    workload = get_workload("bilstm-tagger")
    params = workload.init_params(jax.random.key(0), 4)
    instances = workload.sample(np.random.default_rng(0), 3)
    plans = {
        layout: eb.batch(
            workload.model, params=params, planner=eb.Planner(layout=layout)
        ).plan(instances)
        for layout in ("schedule", "aligned")
    }
    assert experiment.same_work(plans["schedule"], plans["schedule"])
    assert not experiment.same_work(plans["schedule"], plans["aligned"])
