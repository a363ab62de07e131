"""Tests plans in tiers: one minibatch as data for both programs of a bucket."""

import edbatch as eb


def test_tiers_share_everything_but_what_is_compiled():
    double = eb.cell(lambda params, x: 2 * x)
    batched = eb.batch(lambda params, x: double(params, x), params={})
    plan = batched.plan([1.0, 2.0])

    assert plan.shape.program.options.tier == "fine"
    assert plan.in_tier("fine") is plan

    coarse = plan.in_tier("coarse")
    assert coarse.shape.program.options.tier == "coarse"
    assert coarse.in_tier("fine").shape == plan.shape
    assert (coarse.stream is plan.stream) and (coarse.pools is plan.pools)
    assert coarse.shape != plan.shape
