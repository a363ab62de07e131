"""Compares batched with unbatched outputs and gradients of random programs."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import interpret, make_params, sample_program

import edbatch as eb
from edbatch.policies.registry import get_policy

# Programs of twenty types take long to compile.
pytestmark = pytest.mark.usefixtures("quick_compiles")


class RandomChoice(eb.FrontierPolicy):
    name = "random"

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def choose(self, frontier):
        return int(self.rng.choice(np.flatnonzero(frontier.sizes)))


def policies(seed):
    return ["depth", "agenda", "greedy", RandomChoice(seed)]


def sample_minibatch(seed, instances, length):
    rng = np.random.default_rng(seed)
    return [
        sample_program(rng, int(rng.integers(1, length + 1))) for _ in range(instances)
    ]


# Compiling takes seconds. A large minibatch meets all types first, and all others may
# use its bucket despite the waste, so that all policies run one program.
SIZES = eb.Sizes(widths=(3,), max_waste=1e9)


# A program that returns every kind of result.
WITH_COUNTS = [("word", [1]), ("split", [0, 0]), ("attend_pairs", [0, 0])]


@functools.cache
def batched_with_all_types():
    batched = eb.batch(interpret, sizes=SIZES, params=make_params())
    batched.plan(sample_minibatch(0, 60, 40))
    return batched


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from([1, 4]), st.integers(1, 12))
def test_outputs_on_random_programs(seed, instances, length):
    minibatch = sample_minibatch(seed, instances, length)
    batched = batched_with_all_types()
    eb.verify(batched, make_params(seed % 3), minibatch, gradients=False)


@pytest.mark.parametrize("policy", policies(3), ids=lambda p: getattr(p, "name", p))
def test_outputs_and_gradients_under_every_policy(policy):
    batched = batched_with_all_types()
    batched.policy = get_policy(policy)
    for seed in (2, 4):
        # A separate one for each policy, since plans are cached by structure.
        minibatch = sample_minibatch([seed, *batched.policy.name.encode()], 4, 25)
        minibatch.append(WITH_COUNTS)
        found = eb.verify(batched, make_params(seed), minibatch)
        assert found.max_gradient_error is not None
        assert found.outputs > 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_outputs_and_gradients_on_many_programs(seed):
    minibatch = sample_minibatch(seed, 1 + seed % 9, 40)
    batched = eb.batch(interpret, RandomChoice(seed))
    eb.verify(batched, make_params(seed), minibatch)


def test_the_result_does_not_depend_on_schedule_and_widths():
    minibatch = sample_minibatch(11, 6, 30)
    params = make_params()
    widths = {"depth": (2, 8), "random": (4,)}
    results = [
        eb.batch(interpret, policy, sizes=eb.Sizes(widths=widths[name]))(
            params, minibatch
        )
        for name, policy in (("depth", "depth"), ("random", RandomChoice(1)))
    ]
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_padded_lists_of_many_lengths_share_types():
    programs = [[("word", [1]), ("attend", [0] * k)] for k in (5, 6, 7, 8)]
    batched = eb.batch(interpret, params=make_params())
    batched.plan(programs)
    attend = [t for t in batched.types.types if t.key.cell == "attend"]
    assert [each.key.arity for each in attend] == [9]  # the query and K = 8 vectors
