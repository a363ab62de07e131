"""Waves with a pool size that has no compiled program run with a larger program."""

import numpy as np
import pytest
from pools_of_waves import note_pool_rows
from served_process import wait_until
from wave_programs import wave_programs

import edbatch as eb

SCALE = np.float32(2)
IMAGES = np.random.default_rng(0).normal(size=(70, 1024)).astype(np.float32)


@pytest.fixture(autouse=True)
def coarse():
    with eb.use_tiers("coarse"):
        yield


@pytest.fixture
def pools(monkeypatch):
    """The number of pool rows of each wave."""
    return note_pool_rows(monkeypatch)


@eb.cell
def read_image(scale, image):
    return image[:6] * scale


def first_pixels(scale, images):
    return eb.value([read_image(scale, each) for each in images])


def check(server, images):
    found = server.submit_nowait(images).result(60)
    np.testing.assert_allclose(found, SCALE * images[:, :6], rtol=1e-6)


def test_smaller_pools_are_compiled_beside_waves(compiler, pools):
    with eb.Server(eb.batch(first_pixels), SCALE) as server:
        check(server, IMAGES)
        before = wave_programs()
        for count in (1, 30, 2):
            check(server, IMAGES[:count])
        assert wave_programs() == before
        assert pools == [256] * 4
        compiler.set()
        assert eb.wait_for_compilations(60)
        check(server, IMAGES[:1])
        check(server, IMAGES[:69])
        assert pools[4:] == [64, 256]
        assert wave_programs()[1] == before[1]


def test_the_largest_pools_are_compiled_ahead(pools):
    ahead = wave_programs()[0] - wave_programs()[1]
    with eb.Server(eb.batch(first_pixels), SCALE) as server:
        check(server, IMAGES[:40])
        waited = wave_programs()[1]
        for _ in range(8):  # until its sizes are stable
            check(server, IMAGES[:40])
        wait_until(lambda: wave_programs()[0] - wave_programs()[1] > ahead)
        assert eb.wait_for_compilations(60)
        before = wave_programs()
        assert before[1] == waited
        check(server, IMAGES)
        assert pools == [*[64] * 9, 128]
        assert wave_programs() == before


def test_where_nothing_may_be_compiled(pools):
    with eb.Server(eb.batch(first_pixels), SCALE) as server:
        check(server, IMAGES)
        before = wave_programs()
        with eb.set_stance("fail_on_compile"):
            check(server, IMAGES[:1])
        assert eb.wait_for_compilations(60)
        assert pools == [256, 256]
        assert wave_programs() == before


def test_a_rollout_waits_for_its_own_program(pools):
    batched = eb.batch(first_pixels)
    for count in (70, 1):
        found = batched(SCALE, [IMAGES[:count]])
        np.testing.assert_allclose(
            found.values[:count], SCALE * IMAGES[:count, :6], rtol=1e-6
        )
    assert pools == [256, 64]
