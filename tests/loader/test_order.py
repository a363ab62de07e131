"""Each instance comes once per epoch, in an order determined by the seed alone."""

import numpy as np
import pytest

from edbatch.loader import epoch_order

SIZES = np.random.default_rng(0).integers(1, 1000, 240)


def as_lists(order):
    return [each.tolist() for each in order]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_instance_stands_in_one_minibatch(
    count, batch_size, drop_last, grouped, shuffle
):
    order = epoch_order(
        count,
        batch_size,
        shuffle=shuffle,
        sizes=SIZES[:count] if grouped else None,
        drop_last=drop_last,
    )
    full, rest = divmod(count, batch_size)
    lengths = [batch_size] * full + [rest] * bool(rest and not drop_last)
    assert [len(each) for each in order] == lengths
    flat = [k for each in order for k in each.tolist()]
    assert len(set(flat)) == len(flat) == sum(lengths)
    assert set(flat) <= set(range(count))


def test_without_shuffling_the_order_is_that_of_the_instances():
    assert as_lists(epoch_order(5, 2, shuffle=False, epoch=3)) == [[0, 1], [2, 3], [4]]
    sizes = np.array([5, 1, 4, 2])
    grouped = epoch_order(4, 2, shuffle=False, sizes=sizes)
    assert as_lists(grouped) == [[1, 3], [2, 0]]


@pytest.mark.parametrize("sizes", [None, SIZES])
def test_seed_and_epoch_decide(sizes):
    def order(seed, epoch):
        return as_lists(epoch_order(240, 8, seed=seed, epoch=epoch, sizes=sizes))

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)
    assert order(1, 2) != order(2, 1)


def test_sizes_of_a_minibatch_are_similar_and_minibatches_shuffled():
    def spread(order):
        return np.mean([np.ptp(SIZES[each]) for each in order])

    grouped = epoch_order(240, 8, sizes=SIZES)
    assert spread(grouped) < 0.3 * spread(epoch_order(240, 8))
    means = np.array([SIZES[each].mean() for each in grouped])
    assert abs(np.corrcoef(means, np.arange(30))[0, 1]) < 0.5


def test_the_company_of_an_instance_changes_between_epochs():
    first, second = (
        {frozenset(each.tolist()) for each in epoch_order(240, 8, epoch=e, sizes=SIZES)}
        for e in (0, 1)
    )
    assert len(first & second) < 3


def test_what_fills_no_minibatch_is_of_all_sizes():
    left = [epoch_order(241, 240, epoch=e, sizes=np.arange(241))[-1] for e in range(40)]
    assert 60 < np.mean(left) < 180
