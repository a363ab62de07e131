"""Sampler of speech lattices that resemble real ones in size and shape.

Comparison with the 3,963 lattices of the development part of Fisher Spanish:

    nodes                    mean    5 %   median   95 %    max
    Fisher                   23.2      2       13     76    186
    20,000 sampled           21.4      2       11     76    367

    arcs                     mean    5 %   median   95 %    max
    Fisher                   30.8      1       15    107    307
    sampled                  28.9      1       14    107    528

    longest path             mean    5 %   median   95 %    max
    Fisher                   10.8      1        7     32     58
    sampled                  10.4      1        7     30     68

    share of nodes with 1, 2, 3, 4 and more incoming arcs    most
    Fisher                   0.82   0.11   0.03   0.04         54
    sampled                  0.75   0.16   0.05   0.04         17
"""

from collections import Counter
from itertools import pairwise

import numpy as np

from edbatch.data.speech_lattices import Arc, SpeechLattice
from edbatch.data.zipf import check_request, zipf_words

# The number of words on the first path has an exponential distribution.
_PATH_SCALE, _MAX_PATH = 8.5, 50
# Other paths per word of the first path, a measure of the recogniser's uncertainty: its
# mean over lattices, and its maximum as a multiple of the mean.
_PATHS_PER_WORD, _MOST_UNSURE = 1.0, 3.0
# Success probability of the geometric distribution that limits how many words before
# its target a path may leave.
_GAP_CHANCE = 0.17


def sample_speech_lattices(
    rng: np.random.Generator,
    count: int,
    vocabulary_size: int = 10_000,
    *,
    length: int | None = None,
) -> list[SpeechLattice]:
    """Samples speech lattices.

    All arcs into a node have the same word, as is mostly the case in recognisers'
    lattices. The scores of the arcs out of a node are log-probabilities.

    Args:
        rng: The random generator.
        count: Number of lattices.
        vocabulary_size: Words are integers below this number.
        length: Number of words on the first path from the first node to the last;
            sampled if None.

    Returns:
        The lattices.

    Raises:
        DataError: `rng` is not a generator, or a number is too small.

    Example:
        >>> [lattice] = sample_speech_lattices(np.random.default_rng(0), 1, length=4)
        >>> lattice.num_nodes, len(lattice.arcs)
        (5, 5)
    """
    check_request(rng, count=(count, 0), vocabulary_size=(vocabulary_size, 1))
    if length is None:
        drawn = np.ceil(rng.exponential(_PATH_SCALE, count))
        lengths = drawn.clip(1, _MAX_PATH).astype(int).tolist()
    else:
        check_request(rng, length=(length, 1))
        lengths = [length] * count
    return [_sample_one(rng, each, vocabulary_size) for each in lengths]


def _sample_one(
    rng: np.random.Generator, length: int, vocabulary_size: int
) -> SpeechLattice:
    arcs = _sample_arcs(rng, length)
    words = zipf_words(rng, 1 + max(target for _, target in arcs), vocabulary_size)
    weights = rng.exponential(size=len(arcs)).tolist()
    leaving: Counter[int] = Counter()
    for (source, _), weight in zip(arcs, weights, strict=True):
        leaving[source] += weight
    return SpeechLattice(
        tuple(
            Arc(source, target, words[target], float(np.log(weight / leaving[source])))
            for (source, target), weight in zip(arcs, weights, strict=True)
        )
    )


def _sample_arcs(rng: np.random.Generator, length: int) -> list[tuple[int, int]]:
    """Samples arcs (source, target): one path, then paths that leave and rejoin it."""
    times = [float(time) for time in range(length + 1)]  # of the nodes
    arcs = [(node, node + 1) for node in range(length)]
    rate = _PATHS_PER_WORD * length * min(rng.exponential(), _MOST_UNSURE)
    for _ in range(int(rng.poisson(rate))):
        # Nodes where paths meet are more likely to be chosen again.
        target = arcs[int(rng.integers(len(arcs)))][1]
        earliest = times[target] - rng.geometric(_GAP_CHANCE)
        near = [node for node, _ in arcs if earliest <= times[node] < times[target]]
        source = near[int(rng.integers(len(near)))]
        gap = times[target] - times[source]
        between = max(0, round(gap) - 1 + int(rng.integers(-1, 2)))
        path = [source, *range(len(times), len(times) + between), target]
        step = gap / (between + 1)
        times += [times[source] + step * k for k in range(1, between + 1)]
        arcs += pairwise(path)
    # The sort is stable, so ties keep a path's own order; no arc connects nodes of
    # equal time.
    order = sorted(range(len(times)), key=times.__getitem__)
    place = {node: k for k, node in enumerate(order)}
    return sorted((place[source], place[target]) for source, target in arcs)
