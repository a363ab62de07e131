"""Minibatches of sampled graphs."""

from functools import partial

import numpy as np

from edbatch.envs import (
    sample_lattice_structure,
    sample_tree_structure,
)


def sampled(sampler, count, seed):
    rng = np.random.default_rng(seed)
    return [sampler(rng) for _ in range(count)]


TREES = partial(sample_tree_structure, instances=32, max_leaves=30)
LATTICES = partial(sample_lattice_structure, instances=8, max_characters=110)
