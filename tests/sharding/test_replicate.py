"""`replicate` copies the parameters to all devices."""

import numpy as np
import pytest
from shared_memory import aligned, keep_busy
from trees import assert_equal, encode, make_params, sample_trees

import edbatch as eb


@pytest.mark.parametrize("busy", [False, True])
def test_arrays_of_numpy_may_change_later(busy):
    params = make_params()
    sharded = eb.batch(encode, params=params, sizes=eb.Sizes(widths=(8,))).sharded()
    own = {name: aligned(each) for name, each in params.items()}
    if busy:
        keep_busy()
    replicated = sharded.replicate(own)
    for each in own.values():
        each[...] = 0
    for name, each in replicated.items():
        np.testing.assert_array_equal(each, params[name])
    trees = sample_trees(0, 3)
    found, _ = sharded(replicated, trees)
    assert_equal(list(found), [encode(params, each)[0] for each in trees])
