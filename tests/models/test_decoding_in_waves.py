"""Decoders on a minibatch against the same decoders on one instance at a time."""

from pathlib import Path

import jax
import numpy as np
import pytest
from equations import random_like

import edbatch as eb
from edbatch.benchmark.compile_counter import count_compiles
from edbatch.graph.context import jitted_cells
from edbatch.instance_results import split_instances
from edbatch.models import WORKLOADS, get_workload

# Compilation dominates these tests, not the number of rows.
pytestmark = pytest.mark.usefixtures("quick_compiles")
SIZES = eb.Sizes(widths=(8,))
CASES = {
    "transition-parser": ("transition-parser", {"num_relations": 5}),
    "tree-decoder": ("tree-decoder", {"num_labels": 5}),
    "lstm-nmt, greedy": ("lstm-nmt", {}),
    "lstm-nmt, beam": ("lstm-nmt", {"beam_width": 3}),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """A workload, its batched decoder, parameters and short instances."""
    name, options = CASES[request.param]
    workload = get_workload(name, vocabulary_size=20, **options)
    params = random_like(workload.init_params(jax.random.key(0), 6), 3)
    if name == "lstm-nmt":  # so that translations end, at different lengths
        params["attention"]["output"]["b"][2] += 1.0
    instances = workload.sample(np.random.default_rng(2), 14)
    instances = sorted(instances, key=lambda each: len([*workload.words(each)]))[2:5]
    return workload, eb.batch(workload.decode, sizes=SIZES), params, instances


def unstacked(outputs, count):
    """The model's result for each instance."""
    return split_instances(outputs, count)


def assert_same(found, expected):
    own, other = (jax.tree.flatten(each) for each in (found, expected))
    assert own[1] == other[1]
    for one, two in zip(own[0], other[0], strict=True):
        if np.asarray(two).dtype.kind in "ib":
            assert np.array_equal(one, two)  # the same decisions
        else:
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_there_is_a_case_for_each_decoder():
    decoders = {name for name in WORKLOADS if get_workload(name).decode}
    assert decoders == {name for name, _ in CASES.values()}


def test_a_minibatch_decodes_as_each_instance_alone(case):
    workload, batched, params, instances = case
    found = unstacked(batched(params, instances), len(instances))
    for own, instance in zip(found, instances, strict=True):
        with jitted_cells():
            expected = workload.decode(params, instance)
        assert_same(own, expected)


def test_paths_run_again_with_gradients(case):
    workload, batched, params, instances = case
    rollout = batched.rollout(params, instances)
    plan = batched.plan(rollout.recordings)
    again = batched.apply(params, plan)
    assert_same(
        unstacked(again, len(instances)), unstacked(rollout.outputs, len(instances))
    )

    def total(outputs):
        floats = [x for x in jax.tree.leaves(outputs) if x.dtype.kind == "f"]
        return sum((jax.numpy.sum(jax.numpy.sin(x)) for x in floats), 0.0)

    def own(some):
        parts = [workload.decode(some, each) for each in instances]
        return sum(total(jax.tree.map(jax.numpy.asarray, part)) for part in parts)

    gradients = jax.grad(lambda some: total(batched.apply(some, plan)))(params)
    with jitted_cells():
        expected = jax.grad(own)(params)
    assert any(np.any(each) for each in jax.tree.leaves(expected))
    assert_same(gradients, expected)


def test_eb_verify_compares_a_decoder(case):
    workload, batched, params, instances = case
    if workload.name != "transition-parser":
        pytest.skip("one decoder is enough: the test above compares gradients of all")
    found = eb.verify(batched, params, instances)
    assert (found.instances, found.close_choices) == (3, 0)
    assert max(found.max_output_error, found.max_gradient_error) < 1e-5


def test_later_minibatches_compile_nothing(case):
    _, batched, params, instances = case
    batched(params, instances)
    with count_compiles() as count:
        batched(params, instances)
        assert count.programs == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("transition-parser", "ud_english_ewt/en_ewt-ud-test.conllu"),
        ("tree-decoder", "ud_english_ewt/en_ewt-ud-test.conllu"),
        ("lstm-nmt", "tatoeba_cmn_eng/cmn.txt"),
    ],
)
def test_real_data(shared_data: Path, name: str, path: str) -> None:
    workload = get_workload(name)
    instances = workload.read(shared_data / path)[:16]
    params = random_like(workload.init_params(jax.random.key(0), 16), 3)
    batched = eb.batch(workload.decode, sizes=SIZES)
    found = unstacked(batched(params, instances), len(instances))
    for own, instance in zip(found, instances, strict=True):
        with jitted_cells():
            expected = workload.decode(params, instance)
        assert_same(own, expected)
