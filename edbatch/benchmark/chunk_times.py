"""Times chunks, by type and width, in the running program."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from edbatch.benchmark.replay import Replay
from edbatch.benchmark.stopwatch import Stopwatch
from edbatch.plan import Plan

Progress = Callable[[int, int, str], None]
ChunkTimes = dict[int, dict[int, float]]  # type id -> width -> time

_LEAST_SHARE = 1e-4  # lower limit of the first estimate, as a share of the minibatch


def time_chunks(
    replay: Replay, watch: Stopwatch, rounds: int, progress: Progress
) -> ChunkTimes:
    """Times one chunk of each type and width that has a loop in the program.

    Args:
        replay: The replay of a minibatch that has nodes of all types.
        watch: A stopwatch whose standard is this minibatch.
        rounds: Number of repetitions of each timing.
        progress: Called as ``progress(done, total, what)``.

    Returns:
        Times relative to the minibatch's, non-negative and non-decreasing in the width.
    """
    loops = replay.loops
    total = len(loops) * (rounds + 1)
    plans: list[Plan] = []
    counts: list[int] = []
    for done, loop in enumerate(loops):
        progress(done, total, "Preparing")
        count = min(int(replay.plan.num_steps), replay.most(loop))
        [ratio] = watch.ratio(jax.device_put(replay.add(loop, count)))
        share = max(_LEAST_SHARE, (ratio - 1) / count)
        counts.append(int(np.clip(1 / share, 1, replay.most(loop))))
        plans.append(jax.device_put(replay.add(loop, counts[-1])))
    more = np.empty((rounds, len(loops)))
    for r in range(rounds):
        for p, plan in enumerate(plans):
            progress((r + 1) * len(loops) + p, total, "Timing chunks")
            [ratio] = watch.ratio(plan)
            more[r, p] = ratio - 1
    shares = np.maximum(0, np.median(more, axis=0) / counts)
    found: ChunkTimes = {}
    for loop, share in sorted(zip(loops, shares.tolist(), strict=True)):
        found.setdefault(loop.type_id, {})[loop.width] = share
    return {
        type_id: dict(zip(by_width, rising([*by_width.values()]), strict=True))
        for type_id, by_width in found.items()
    }


def rising(values: Sequence[float]) -> list[float]:
    """Returns the non-decreasing sequence closest to the values in least squares.

    Pool adjacent violators (Ayer et al. 1955): decreasing neighbours become their mean.

    Returns:
        A non-decreasing sequence of the same length.

    Example:
        >>> rising([1.0, 4.0, 2.0, 5.0])
        [1.0, 3.0, 3.0, 5.0]
    """
    pools: list[list[float]] = []
    for value in values:
        pools.append([value])
        while len(pools) > 1 and np.mean(pools[-2]) > np.mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [float(np.mean(pool)) for pool in pools for _ in pool]


def extended(by_width: dict[int, float], widths: Sequence[int]) -> list[float]:
    """Extrapolates times of chunks to wider ones.

    Args:
        by_width: Times of the narrowest widths.
        widths: All widths, ascending.

    Returns:
        A time per width. Missing times are extrapolated with the mean increase per row.

    Example:
        >>> extended({4: 5.0, 8: 7.0}, [4, 8, 16])
        [5.0, 7.0, 11.0]
    """
    first, last = min(by_width), max(by_width)
    rise = (by_width[last] - by_width[first]) / max(1, last - first)
    return [
        by_width.get(width, by_width[last] + (width - last) * rise) for width in widths
    ]
