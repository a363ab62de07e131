"""Tests waves with one switch per chunk, as on GPUs: they equal waves with loops."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from asking_models import (
    grow_tree,
    make_params,
    sample_words,
    shift_reduce,
    wander,
)
from several_outputs import check_outputs

import edbatch as eb
from edbatch.cell.jaxpr import body_of, inner_bodies, name_of
from edbatch.graph.context import jitted_cells
from edbatch.instance_results import split_instances
from edbatch.target import CPU
from edbatch.waves import wave_execution
from edbatch.waves.wave import Wave, run_wave

# Barriers, as on GPUs; fences made of loops would be counted.
SWITCH = replace(CPU, control="switch", fence="barrier", fenced_slice=None)
PARAMS = make_params()
MODELS = {
    "parser": (shift_reduce, sample_words(9)),
    "decoder": (grow_tree, list(range(8))),
    "program": (wander, list(range(10))),
}

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.fixture(autouse=True)
def switched(monkeypatch):
    """Makes all waves for programs with one switch per chunk."""
    monkeypatch.setattr("edbatch.batched.choose_target", lambda *_, **__: SWITCH)


@pytest.fixture
def shapes(monkeypatch):
    """The shapes that the running waves are compiled for."""
    found = []

    def wave(shape, *arrays):
        found.append(shape)
        return Wave(shape, *arrays)

    monkeypatch.setattr(wave_execution, "Wave", wave)
    return found


def check(found, model, instances):
    for one, instance in zip(
        split_instances(found, len(instances)), instances, strict=True
    ):
        with jitted_cells():
            expected = jax.tree.leaves(model(PARAMS, instance))
        for own, leaf in zip(jax.tree.leaves(one), expected, strict=True):
            np.testing.assert_allclose(own, leaf, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_call_equals_the_model_run_on_each_instance(name):
    model, instances = MODELS[name]
    check(eb.batch(model)(PARAMS, instances), model, instances)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_recordings_are_those_of_the_model(name):
    model, instances = MODELS[name]
    found = eb.verify(eb.batch(model), PARAMS, instances[:5])
    assert found.max_gradient_error is not None


@pytest.mark.parametrize("count", [1, 5, 7])
def test_padding_overwrites_no_output(count):
    check_outputs(PARAMS, count)


def primitives(body):
    """Names of all equations, inner functions included."""
    for eqn in body.equations:
        yield name_of(eqn)
        for inner in inner_bodies(eqn):
            yield from primitives(inner)


def test_the_host_is_not_asked_how_many_chunks_there_are():
    model, instances = MODELS["parser"]
    runner, started = eb.batch(model).wave_runner(PARAMS)
    runs = [
        runner.start(k, lambda each=each: started(each))
        for k, each in enumerate(instances)
    ]
    runner.launch(runs)
    calls = [
        arguments
        for function, arguments in runner.execution.calls()
        if len(arguments) > 2
    ]
    assert calls
    for arguments in calls:
        names = list(primitives(body_of(jax.make_jaxpr(run_wave)(*arguments))))
        # A loop whose iteration count is known at compile time becomes a scan.
        assert names.count("cond") == 1 and "while" not in names


def test_waves_of_any_size_share_few_programs(shapes):
    model, _ = MODELS["parser"]
    batched = eb.batch(model)
    for count in (40, 1, 7, 40, 23, 40):
        shapes.clear()
        check(batched(PARAMS, sample_words(count)), model, sample_words(count))
        chunks = {each.program.chunks for each in shapes}
    assert chunks <= {8, 16, 32, 64, 128} and len(shapes) > len(chunks)
    # The same objects, so that a wave's compiled program is found quickly.
    assert len(set(map(id, shapes))) == len(set(shapes)) == len(chunks)


def test_a_warm_up_compiles_programs_of_all_sizes():
    model, _ = MODELS["parser"]
    batched = eb.batch(model)
    batched.warm_up(sample_words(24), [24], params=PARAMS)
    with eb.set_stance("fail_on_compile"):
        for count in (24, 1, 5):
            check(batched(PARAMS, sample_words(count)), model, sample_words(count))
