"""Tests the notice, given once, that a run uses one of several devices or cores."""

import copy
import logging
import pickle

import jax
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.plan import device_notice


@pytest.fixture(scope="module")
def params():
    return make_params()


@pytest.fixture
def batched(params):
    return eb.batch(encode, params=params, sizes=eb.Sizes(widths=(4, 16)))


@pytest.fixture
def trees():
    return sample_trees(np.random.default_rng(0), 2)


@pytest.fixture
def machine(monkeypatch):
    """Sets the number of devices and cores."""

    def are(devices, cores):
        monkeypatch.setattr(jax, "local_device_count", lambda: devices)
        monkeypatch.setattr(device_notice, "usable_cores", lambda: cores)

    return are


@pytest.fixture
def told(caplog):
    """Returns the levels and texts of notices since the last call."""

    def lines():
        found = [(each.levelno, each.getMessage()) for each in caplog.records]
        caplog.clear()
        return [each for each in found if " runs on one " in each[1]]

    caplog.set_level(logging.INFO, "edbatch")
    return lines


def test_idle_devices_are_a_warning_once(machine, told, batched, params, trees):
    machine(devices=2, cores=2)
    batched(params, trees)
    [(level, line)] = told()
    assert level == logging.WARNING
    assert line.startswith("encode runs on one of 2 CPU devices")
    assert "eb.choose_devices" in line and "batched.sharded()" in line
    batched(params, trees)
    batched.apply(params, batched.plan(trees))
    assert not told()


def test_one_device_of_several_cores_is_information(
    machine, told, batched, params, trees
):
    machine(devices=1, cores=4)
    batched(params, trees)
    [(level, line)] = told()
    assert level == logging.INFO
    assert line.startswith("encode runs on one CPU device") and "over 4 cores" in line
    assert "eb.use_cpu_devices()" in line and "eb.choose_devices" in line


def test_one_core_is_no_choice(machine, told, batched, params, trees):
    machine(devices=1, cores=1)
    batched(params, trees)
    assert not told()


def test_who_has_placed_the_parameters_has_chosen(
    machine, told, batched, params, trees
):
    machine(devices=2, cores=2)
    batched(jax.device_put(params, jax.devices()[0]), trees)
    assert not told()


def test_who_has_set_the_default_device_has_chosen(
    machine, told, batched, params, trees
):
    machine(devices=2, cores=2)
    with jax.default_device(jax.devices()[0]):
        batched(params, trees)
    assert not told()


def test_other_backends_have_no_cores_to_tell_of(
    machine, told, monkeypatch, batched, trees
):
    machine(devices=2, cores=2)
    plan = batched.plan(trees)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    batched.device_notice.tell(plan)
    assert not told()


def test_what_is_compiled_around_a_plan_is_not_the_call(
    machine, told, batched, params, trees
):
    machine(devices=2, cores=2)
    plan = batched.plan(trees)
    jax.eval_shape(batched.apply, params, plan)
    assert not told() and batched.device_notice.due


def test_copies_tell_for_themselves(machine, told, batched, params, trees):
    machine(devices=2, cores=2)
    plan = batched.plan(trees)
    batched.device_notice.tell(plan)
    assert len(told()) == 1
    for other in (copy.copy(batched), pickle.loads(pickle.dumps(batched))):
        assert other.device_notice.due


@pytest.mark.parametrize("level", [logging.WARNING, logging.INFO])
def test_a_loop_of_a_loader_tells(machine, told, batched, trees, level):
    machine(devices=1 + (level == logging.WARNING), cores=2)
    loader = eb.Loader(batched, trees, 1)
    assert len(list(loader.epochs(2))) == 4
    [(found, _)] = told()
    assert found == level
