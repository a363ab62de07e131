"""The choice of devices, and every error message about a wrong choice."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import edbatch as eb
from edbatch.sharding.devices import choose_axis


@eb.cell
def double(params, x):
    return params * 2 * x


def one_device(*axes):
    return Mesh(np.array(jax.devices()[:1]).reshape((1,) * len(axes)), axes)


@pytest.fixture(scope="module")
def batched():
    return eb.batch(double, params=np.float32(1))


@pytest.fixture(scope="module")
def sharded(batched):
    return batched.sharded(one_device("data"))


def raises(text):
    return pytest.raises(eb.PlanError, match=re.escape(text))


def test_one_axis_needs_no_name():
    assert choose_axis(one_device("rows")) == "rows"
    assert choose_axis(one_device("rows", "columns"), "columns") == "columns"


def test_a_mesh_with_several_axes(batched):
    with raises("this one has 2, {'a': 1, 'b': 1}; name the axis: .sharded"):
        batched.sharded(one_device("a", "b"))


def test_an_unknown_axis(batched):
    with raises("axis='date' is not an axis of the mesh; did you"):
        batched.sharded(one_device("data"), axis="date")


@pytest.mark.parametrize("mesh", [2, "data", []])
def test_what_is_no_mesh(batched, mesh):
    with raises(f"a jax.sharding.Mesh of devices but received {type(mesh).__name__}"):
        batched.sharded(mesh)


def test_a_mesh_of_another_process(batched, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with raises(
        "the mesh contains no device of this process, 1 of 1; call jax.distributed"
    ):
        batched.sharded(one_device("data"))


def test_a_plan_for_one_device(batched, sharded):
    with raises(
        "takes a plan for all devices of its mesh but received one for a single"
    ):
        sharded.apply(1.0, batched.plan([1.0]))


def test_a_sharded_plan_for_a_batched_function(batched, sharded):
    with raises("takes a plan for one device but received one for 1 devices; run it"):
        batched.apply(1.0, sharded.plan([1.0]))


def test_what_is_no_plan(sharded):
    with raises("takes a plan made by its .plan(instances) but received list"):
        sharded.apply(1.0, [1.0])


def test_a_plan_of_another_mesh(batched, sharded):
    other = batched.sharded(one_device("rows"))
    with raises("axis 'rows' of {'rows': 1} on [cpu:0], but this function has axis"):
        sharded.apply(1.0, other.plan([1.0]))


def test_a_plan_of_another_model(sharded):
    model = lambda params, x: double(params, x)  # noqa: E731
    other = eb.batch(model, params=np.float32(1)).sharded(one_device("data"))
    with raises("the plan was made by another model"):
        sharded.apply(1.0, other.plan([1.0]))


def test_an_empty_minibatch(sharded):
    with raises("a minibatch needs at least one instance but is empty"):
        sharded.plan([])


def test_an_instance_that_returns_its_input_alone():
    batched = eb.batch(lambda params, x: double(params, x) if x else x, params=1.0)
    with pytest.raises(eb.RecordingError, match="output, pass it through a cell"):
        batched.sharded().plan([1.0, 2.0, 0.0])


def test_parameters_on_a_mesh_with_explicit_axes(sharded):
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = jax.device_put(np.float32(1), everywhere)
    with raises("but params lies on a mesh with explicit axes, as jax.make_mesh makes"):
        sharded.apply(placed, sharded.plan([1.0]))


def test_a_call_under_set_mesh(sharded):
    plan = sharded.plan([1.0])
    with (
        jax.set_mesh(jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])),
        raises("is called under a mesh with explicit axes"),
    ):
        sharded.apply(np.float32(1), plan)


def test_devices_are_made_before_jax_runs():
    count = jax.device_count() + 1  # initializes the devices
    with pytest.raises(eb.EdbatchError, match="comes too late; call it right after"):
        eb.use_cpu_devices(count)


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_the_number_of_devices_is_positive(count):
    with pytest.raises(eb.EdbatchError, match=f"use_cpu_devices got {count}"):
        eb.use_cpu_devices(count)
