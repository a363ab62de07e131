"""Tests the loss and the timing of measurements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from edbatch import measuring
from edbatch.measuring import half_squares, side_by_side, timed


def test_the_loss_counts_every_number_but_integers():
    outputs = [jnp.arange(3.0), {"n": jnp.arange(9)}, jnp.bfloat16(2), 1 + 2j]
    assert float(half_squares(outputs)) == 0.5 * (5 + 4 + 5)


def test_the_loss_of_complex_numbers_has_a_gradient():
    pull = jax.grad(lambda x: half_squares(jax.lax.complex(x, 3 * x)))
    assert float(pull(jnp.float32(2))) == pytest.approx(20)
    assert float(pull(jnp.float32(0))) == 0


def test_nothing_has_no_loss():
    assert float(half_squares([])) == 0


class Clock:
    """A fake clock that calls advance."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: self.now)

    def call(self, name, seconds, log):
        def run():
            log.append(name)
            self.now += seconds

        return run


def test_what_took_how_long(monkeypatch):
    clock = Clock(monkeypatch)
    assert timed(clock.call("a", 2.0, [])) == (None, 2000.0)
    assert timed(max, 1, 3)[0] == 3


def test_calls_take_turns_and_each_round_begins_with_another(monkeypatch):
    clock, log = Clock(monkeypatch), []
    calls = [clock.call("a", 1.0, log), clock.call("b", 2.0, log)]
    times = side_by_side(calls, 3)
    assert "".join(log) == "ab" + "ab" + "ba" + "ab"  # the first calls may compile
    np.testing.assert_array_equal(times, [[1000.0] * 3, [2000.0] * 3])


@pytest.mark.parametrize(("most_ms", "rounds"), [(0, 3), (11_999, 4), (1e9, 7)])
def test_rounds_end_when_time_is_up(monkeypatch, most_ms, rounds):
    clock = Clock(monkeypatch)
    calls = [clock.call("a", 1.0, []), clock.call("b", 2.0, [])]
    assert side_by_side(calls, 7, most_ms).shape == (2, rounds)
