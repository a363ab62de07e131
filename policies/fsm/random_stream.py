"""A stream of random numbers in compiled code that is the same on every machine.

SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators"):
a counter with a good hash. NumPy's generators may change their streams between
versions, but a seed should give the same policy in later versions, too.
"""

import numpy as np

from edbatch.kernel import kernel

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31 = (np.uint64(bits) for bits in (11, 27, 30, 31))


def new_stream(seed: int) -> np.ndarray:
    """Starts a stream.

    Args:
        seed: Any integer, taken modulo 2⁶⁴.

    Returns:
        The state of the stream.

    Example:
        >>> round(float(next_uniform(new_stream(0))), 6)
        0.883311
    """
    return np.array([seed % 2**64], np.uint64)


@kernel
def next_bits(stream: np.ndarray) -> np.uint64:
    """Draws 64 random bits.

    Args:
        stream: The state; updated.
    """
    stream[0] += _STEP
    z = stream[0]
    z = (z ^ (z >> _S30)) * _FIRST
    z = (z ^ (z >> _S27)) * _SECOND
    return z ^ (z >> _S31)


@kernel
def next_uniform(stream: np.ndarray) -> float:
    """Draws a number that is uniform in [0, 1).

    Args:
        stream: The state; updated.
    """
    return np.float64(next_bits(stream) >> _S11) * 2.0**-53
