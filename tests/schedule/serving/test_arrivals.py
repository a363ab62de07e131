import time

import numpy as np
import pytest

from edbatch.errors import PolicyError
from edbatch.schedule.serving import Arrivals


@pytest.mark.parametrize("burst", [1, 4, 20])
def test_the_mean_rate_is_what_was_asked_for(burst):
    rng = np.random.default_rng(0)
    count = 100_000
    times = Arrivals(rate=200, burst=burst, dwell_ms=20).draw(rng, count)
    assert times.shape == (count,)
    assert (np.diff(times) >= 0).all() and times[0] > 0
    assert count / times[-1] * 1000 == pytest.approx(200, rel=0.02)


def dispersion(arrivals):
    """Variance over mean of the arrivals in 50 ms; 1 for a Poisson process."""
    times = arrivals.draw(np.random.default_rng(1), 100_000)
    counts = np.histogram(times, np.arange(0, times[-1], 50.0))[0]
    return counts.var() / counts.mean()


def test_bursts_are_more_dispersed():
    assert dispersion(Arrivals(rate=200)) == pytest.approx(1, abs=0.1)
    quiet, busy = (dispersion(Arrivals(rate=200, burst=b)) for b in (3, 10))
    assert 1.3 < quiet < busy


def test_a_seed_gives_the_same_arrivals():
    for arrivals in (Arrivals(5), Arrivals(5, burst=3)):
        one, same, other = (
            arrivals.draw(np.random.default_rng(seed), 500) for seed in (1, 1, 2)
        )
        np.testing.assert_array_equal(one, same)
        assert not np.array_equal(one, other)


@pytest.mark.parametrize("rate", [0.5, 50, 5000])
def test_arrivals_of_a_seed_are_those_of_all_states_at_once(rate):
    arrivals = Arrivals(rate, burst=4, dwell_ms=50)
    found = arrivals.draw(np.random.default_rng(5), 200)
    rng = np.random.default_rng(5)
    work = np.cumsum(rng.exponential(1.0, 200))
    quiet = 2 * rate / 1000 / 5
    rates = np.array([quiet, 4 * quiet])[(int(rng.integers(2)) + np.arange(64)) % 2]
    times, done = [0.0], [0.0]
    while done[-1] <= work[-1]:
        spans = rng.exponential(50, 64)
        times += (times[-1] + np.cumsum(spans)).tolist()
        done += (done[-1] + np.cumsum(spans * rates)).tolist()
    np.testing.assert_array_equal(found, np.interp(work, done, times))


def test_few_arrivals_in_a_long_time():
    """The cost of drawing them is linear in the time, not quadratic."""
    start = time.process_time()
    times = Arrivals(rate=0.005, burst=4).draw(np.random.default_rng(0), 200)
    assert times[-1] > 1e7  # ms: several hundred thousand states
    assert time.process_time() - start < 3


def test_all_rates_have_the_same_pattern():
    slow, fast = (Arrivals(r).draw(np.random.default_rng(3), 20) for r in (10, 40))
    np.testing.assert_allclose(slow, 4 * fast)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rate": 0}, "a rate and a dwell_ms above 0"),
        ({"rate": 1, "burst": 0.5}, "a burst of 1 or more"),
        ({"rate": 1, "dwell_ms": 0}, "a dwell_ms above 0"),
        ({"rate": "5"}, "rate of arrivals is a finite number.* but this is '5'"),
    ],
)
def test_arrivals_that_cannot_be(arguments, message):
    with pytest.raises(PolicyError, match=message):
        Arrivals(**arguments)


@pytest.mark.parametrize("burst", [1, 3])
def test_no_arrivals(burst):
    assert len(Arrivals(rate=1, burst=burst).draw(np.random.default_rng(0), 0)) == 0
