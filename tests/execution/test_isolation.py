"""What one instance holds changes no number of another, forward and backward."""

import jax
import pytest
from poisoned import (
    POISONS,
    Differentiated,
    assert_isolated,
    chain,
    make_params,
    sample_chains,
)

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")

LENGTHS = (3, 5, 2, 4, 1, 3, 6)

PLANNERS = {
    "default": eb.Planner(),
    "aligned": eb.Planner(layout="aligned"),
    "aligned, gathered": eb.Planner(layout="aligned", slices=False),
    "aligned, remat": eb.Planner(layout="aligned", remat=True),
    "unpacked": eb.Planner(layout="aligned", packing=False),
    "unpacked, remat": eb.Planner(layout="aligned", packing=False, remat=True),
    "hoisted": eb.Planner(layout="aligned", hoisting="always"),
    "not hoisted": eb.Planner(layout="aligned", hoisting="never"),
}


def assert_all_isolated(batched, sample):
    differentiated = Differentiated(batched, jax.random.key(0))
    for at in range(len(sample(0))):
        for value in POISONS.values():
            assert_isolated(differentiated, sample(at), at, value)


def has_slices(batched, minibatch):
    plan = batched.plan(minibatch)
    turns = plan.trips[: plan.num_steps].sum(axis=0)
    loops = plan.shape.program.loops
    return any(turn and loop.sliced for turn, loop in zip(turns, loops, strict=True))


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("widths", [(4,), (1, 3, 8)])
def test_chains(planner, widths):
    batched = eb.batch(
        chain,
        params=make_params(),
        planner=PLANNERS[planner],
        sizes=eb.Sizes(widths=widths),
    )
    assert_all_isolated(batched, lambda at: sample_chains(1, LENGTHS, at))
    minibatch = sample_chains(1, LENGTHS, 0)
    assert has_slices(batched, minibatch) == PLANNERS[planner].slices
