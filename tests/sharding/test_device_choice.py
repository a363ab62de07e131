"""`eb.choose_devices` measures one device and all of them, and picks the faster."""

import logging

import jax
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch import device_choice

pytestmark = pytest.mark.devices

TREES = 5


@pytest.fixture(scope="module")
def params():
    return make_params()


@pytest.fixture(scope="module")
def batched(params):
    return eb.batch(encode, params=params, sizes=eb.Sizes(widths=(4, 16)))


@pytest.fixture
def sample():
    return sample_trees(np.random.default_rng(0), TREES)


def fake_times(monkeypatch, *times):
    """Makes runs take these milliseconds; returns the list of measured runs."""
    measured = []

    def side_by_side(runs, rounds, most_ms):
        measured.extend(runs)
        for run in runs:
            jax.block_until_ready(run())  # checks that they run
        return np.array(times)[:, None]

    monkeypatch.setattr(device_choice, "side_by_side", side_by_side)
    return measured


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize(("times", "devices"), [((2.0, 3.0), 1), ((3.0, 2.0), 2)])
def test_the_faster_one_is_chosen_and_told(
    monkeypatch, caplog, batched, params, sample, gradient, times, devices
):
    measured = fake_times(monkeypatch, *times)
    with caplog.at_level(logging.INFO, "edbatch"):
        found = eb.choose_devices(batched, params, sample, gradient=gradient)
    assert len(measured) == 2
    assert isinstance(found.function, eb.Sharded) == (devices == 2)
    assert found.milliseconds == {1: times[0], 2: times[1]}
    assert found.devices == devices
    assert repr(found) == (
        f"DeviceChoice({devices} of 2 devices, {times[0]:.2f} ms on 1,"
        f" {times[1]:.2f} ms on 2)"
    )
    [line] = [each.getMessage() for each in caplog.records]
    what = "value and gradient" if gradient else "forward"
    assert f"{what} of {TREES} instances" in line
    assert f"{times[0]:.2f} ms on 1 device" in line
    assert f"{times[1]:.2f} ms on 2" in line
    assert f"using {devices}" in line
    expected = batched(params, sample)
    states = found.function(found.params, sample)
    np.testing.assert_allclose(states, expected, rtol=1e-5, atol=1e-6)
    for leaf in jax.tree.leaves(found.params):
        assert len(leaf.sharding.device_set) == devices


def test_minibatches_of_a_loader(monkeypatch, caplog, batched, params, sample):
    loaded = []

    class Loader(eb.Loader):
        def __init__(self, *arguments):
            loaded.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr(device_choice, "Loader", Loader)
    measured = fake_times(monkeypatch, 3.0, 2.0)
    with caplog.at_level(logging.INFO, "edbatch"):
        found = eb.choose_devices(batched, params, sample, batch_size=2)
    assert found.devices == 2
    [line] = [each.getMessage() for each in caplog.records]
    assert f"{TREES} instances, 2 a minibatch, planned again: 3.00 ms" in line
    assert [each.batched for each in loaded] == [batched, found.function]
    assert [each.epoch for each in loaded] == [1, 1]  # the sample once each
    losses = [run()[0] for run in measured]  # the next minibatches, in the same order
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0] > 0


def test_measured_for_real(batched, params, sample):
    found = eb.choose_devices(batched, params, sample)
    assert set(found.milliseconds) == {1, 2}
    assert min(found.milliseconds.values()) == found.milliseconds[found.devices]
    assert 0 < found.milliseconds[1] < 1e5


@pytest.mark.parametrize("batch_size", [None, 2])
def test_integers_among_parameters(monkeypatch, batch_size):
    @eb.cell
    def shifted(params, x):
        return params["weight"] * x + params["shift"]

    params = {"weight": np.float32(2), "shift": np.int32(1)}
    measured = fake_times(monkeypatch, 3.0, 2.0)
    sample = [1.0, 5.0, 3.0]
    batched = eb.batch(shifted)
    found = eb.choose_devices(batched, params, sample, batch_size=batch_size)
    assert found.function(found.params, sample).tolist() == [3.0, 11.0, 7.0]
    slopes = [float(run()[1]["weight"]) for run in measured]
    assert slopes[0] == slopes[1] > 0


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_model_without_parameters(monkeypatch, gradient, batch_size):
    fake_times(monkeypatch, 1.0, 2.0)
    batched = eb.batch(eb.cell(lambda params, x: 2 * x))
    found = eb.choose_devices(
        batched, {}, [1.0, 5.0], gradient=gradient, batch_size=batch_size
    )
    assert found.function({}, [1.0, 5.0]).tolist() == [2.0, 10.0]


def test_a_tie_goes_to_one_device(monkeypatch, batched, params, sample):
    fake_times(monkeypatch, 1.0, 1.0)
    assert eb.choose_devices(batched, params, sample).devices == 1


def test_fewer_instances_than_devices(monkeypatch, batched, params, sample):
    fake_times(monkeypatch, 3.0, 2.0)
    found = eb.choose_devices(batched, params, sample[:1])
    np.testing.assert_allclose(
        found.function(found.params, sample), batched(params, sample), rtol=1e-5
    )


def test_what_is_no_choice_is_refused(batched, params, sample):
    with pytest.raises(eb.EdbatchError, match=r"made by eb\.batch"):
        eb.choose_devices(batched.sharded(), params, sample)
    with pytest.raises(eb.PlanError, match="at least one instance"):
        eb.choose_devices(batched, params, [])
    with pytest.raises(eb.EdbatchError, match="gradient"):
        eb.choose_devices(batched, params, sample, gradient=2)
    with pytest.raises(eb.EdbatchError, match="batch_size of choose_devices"):
        eb.choose_devices(batched, params, sample, batch_size=0)


def test_who_has_measured_is_not_told_of_idle_devices(
    monkeypatch, caplog, batched, params, sample
):
    fake_times(monkeypatch, 1.0, 2.0)
    found = eb.choose_devices(batched, params, sample)
    assert found.function is batched
    batched(params, sample)
    for _ in eb.Loader(batched, sample, 2):
        pass
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


def test_who_has_not_is_told(caplog, params, sample):
    eb.batch(encode)(params, sample)
    [line] = [each.getMessage() for each in caplog.records]
    assert "encode runs on one of 2 CPU devices" in line
