import numpy as np
import pytest

from edbatch.policies.fsm.random_stream import new_stream, next_bits, next_uniform

MASK = 2**64 - 1


def splitmix64(state):
    """The published algorithm, with Python's unbounded integers."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**63, 2**64 - 1])
def test_bits_are_those_of_splitmix64(seed):
    stream = new_stream(seed)
    for expected, _ in zip(splitmix64(seed), range(100), strict=False):
        assert int(next_bits(stream)) == expected


def test_the_published_first_numbers():
    stream = new_stream(1234567)
    assert [int(next_bits(stream)) for _ in range(2)] == [
        6457827717110365317,
        3203168211198807973,
    ]


def test_any_integer_is_a_seed():
    assert new_stream(-1)[0] == new_stream(2**64 - 1)[0]


def test_uniform_numbers():
    stream = new_stream(3)
    drawn = np.array([next_uniform(stream) for _ in range(20_000)])
    assert 0 <= drawn.min() < 0.001
    assert 0.999 < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.01
