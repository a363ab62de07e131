"""The order of an epoch: the instances of each minibatch.

The order depends only on the seed and the number of the epoch, so no state of a random
generator has to be saved to continue in the middle of a run.
"""

import numpy as np

_NOISE = 0.1  # largest relative change of sizes before sorting


def epoch_order(
    num_instances: int,
    batch_size: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    sizes: np.ndarray | None = None,
    drop_last: bool = False,
) -> list[np.ndarray]:
    """Divides the instances of an epoch into minibatches.

    With sizes, the instances of a minibatch have similar sizes. Before the instances
    are sorted, each size is changed randomly by up to a tenth, so that an instance is
    grouped with different ones from epoch to epoch; then the minibatches are shuffled.
    Instances that do not fill a minibatch are drawn from all sizes and come last.
    Without `shuffle`, sizes are not changed and minibatches are not shuffled.

    Args:
        num_instances: Number of instances, N.
        batch_size: Instances per minibatch.
        seed: Seed of the run.
        epoch: Number of the epoch, from 0.
        shuffle: Whether the order is random; otherwise it is the order of the
            instances, or of their sizes.
        sizes: Size of each instance; ``[N]``. None to ignore sizes.
        drop_last: Whether to leave out a last minibatch that is not full.

    Returns:
        One ``[batch_size] int64`` array of instances per minibatch; the last one is
        shorter if `batch_size` does not divide ``N`` and `drop_last` is not set.

    Example:
        >>> [each.tolist() for each in epoch_order(5, 2, shuffle=False)]
        [[0, 1], [2, 3], [4]]
        >>> sizes = np.array([1, 9, 1, 9, 1, 9])
        >>> grouped = epoch_order(6, 3, seed=4, sizes=sizes)
        >>> sorted(sizes[each].tolist() for each in grouped)
        [[1, 1, 1], [9, 9, 9]]
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(num_instances) if shuffle else np.arange(num_instances)
    count = num_instances // batch_size
    full, rest = order[: count * batch_size], order[count * batch_size :]
    if sizes is not None:
        keys = sizes[full]
        if shuffle:
            keys = keys * rng.uniform(1 - _NOISE, 1 + _NOISE, len(full))
        full = full[np.argsort(keys, kind="stable")]
    minibatches = list(full.reshape(count, batch_size))
    if sizes is not None and shuffle:
        minibatches = [minibatches[k] for k in rng.permutation(count)]
    if len(rest) and not drop_last:
        minibatches.append(rest)
    return minibatches


def evenly_spaced(count: int, sample: int) -> np.ndarray:
    """Chooses a sample of a data set that depends only on its length.

    Args:
        count: Number of instances.
        sample: Number of instances to choose; all are chosen if there are fewer.

    Returns:
        Their numbers, ascending; ``[S] int64``.

    Example:
        >>> evenly_spaced(10, 4).tolist()
        [0, 2, 5, 7]
    """
    chosen = min(count, sample)
    return np.arange(chosen, dtype=np.int64) * count // chosen
