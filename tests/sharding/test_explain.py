"""`explain` of a sharded function: the costs of a minibatch on each device."""

import json

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from trees import encode, make_params, sample_trees

import edbatch as eb


def test_one_device():
    trees = sample_trees(np.random.default_rng(0), 6)
    batched = eb.batch(encode, params=make_params())
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    found = batched.sharded(mesh).explain(trees)
    [own] = found.shards
    alone = batched.explain(trees)
    assert [(u.name, u.nodes, u.batches) for u in own.types] == [
        (u.name, u.nodes, u.batches) for u in alone.types
    ]
    assert (found.nodes, found.batches) == (alone.plan.nodes, alone.plan.batches)
    assert str(found).startswith("Device 0: encode: 6 instances")
    assert repr(found).startswith("<ShardedExplanation of 1 devices: ")
    assert json.loads(json.dumps(found.to_json()))["shards"][0]["instances"] == 6
    assert "<h4>Device 0</h4><div" in found._repr_html_()


@pytest.mark.devices
def test_two_devices():
    trees = sample_trees(np.random.default_rng(1), 7)
    sharded = eb.batch(encode, params=make_params()).sharded()
    found, plan = sharded.explain(trees), sharded.plan(trees)
    assert len(found.shards) == 2
    for own, report in zip(found.shards, plan.report.shards, strict=True):
        assert own.plan.nodes == report.nodes
        assert sum(use.batches for use in own.types) == report.batches
    assert found.nodes == plan.report.nodes
    assert found.batches == plan.report.batches
    [one, none] = sharded.explain(trees[:1]).shards
    assert (one is None) != (none is None)
    assert "no instances" in str(sharded.explain(trees[:1]))
