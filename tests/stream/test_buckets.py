"""Tests buckets: which minibatches compile a new program, and which do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.graph.array_kinds import ArrayKinds
from edbatch.stream.buckets import BucketStore
from edbatch.stream.loop import Loop

LOOPS = {Loop(0, 8)}


def store(**options):
    return BucketStore(eb.Sizes(widths=(8, 16, 64), **options))


def test_similar_needs_share_a_bucket():
    buckets = store()
    first = buckets.fit(LOOPS, {"stream": 1000})
    assert buckets.fit(LOOPS, {"stream": 1200}) is first
    assert buckets.fit(LOOPS, {"stream": 500}) is first
    assert len(buckets) == 1


def test_headroom():
    assert store(headroom=1.0).fit(LOOPS, {"stream": 1024}).sizes["stream"] == 1024
    assert 1250 <= store().fit(LOOPS, {"stream": 1000}).sizes["stream"] <= 1350


def test_a_full_bucket_holds_not_one_more():
    buckets = store()
    first = buckets.fit(LOOPS, {"stream": 1000})
    size = first.sizes["stream"]
    assert buckets.fit(LOOPS, {"stream": size}) is first
    assert buckets.fit(LOOPS, {"stream": size + 1}).sizes["stream"] > size


def test_a_larger_need_makes_a_bucket_that_holds_both():
    buckets = store()
    buckets.fit(LOOPS, {"stream": 1000, "steps": 900})
    second = buckets.fit({Loop(1, 16)}, {"stream": 4000, "steps": 100})
    assert second.holds({Loop(0, 8), Loop(1, 16)}, {"stream": 4000, "steps": 900})


def test_a_much_smaller_need_gets_a_bucket_of_its_own():
    buckets = store()
    big = buckets.fit(LOOPS, {"stream": 1_000_000})
    small = buckets.fit(LOOPS, {"stream": 1000})
    assert small is not big
    assert small.sizes["stream"] < 2000


def test_a_new_dimension_makes_a_new_bucket():
    buckets = store()
    first = buckets.fit(LOOPS, {"stream": 1000})
    second = buckets.fit(LOOPS, {"stream": 1000, "pool 3": 5})
    assert first is not second
    assert buckets.fit(LOOPS, {"stream": 1000}) in (first, second)


def test_narrower_and_next_wider_chunks_are_included():
    bucket = store().fit({Loop(2, 16)}, {"stream": 10})
    assert bucket.loops == (Loop(2, 64), Loop(2, 16), Loop(2, 8))


def test_narrower_chunks_with_slices_are_included_too():
    bucket = store().fit({Loop(2, 8, (0, 1)), Loop(2, 8)}, {"stream": 10})
    assert bucket.loops == (
        *(Loop(2, 16), Loop(2, 8)),
        *(Loop(2, 16, (0, 1)), Loop(2, 8, (0, 1))),
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"widths": ()}, "widths must be numbers of rows from 1"),
        ({"widths": (0, 8)}, "widths must be numbers of rows from 1"),
        ({"headroom": 0.5}, "1 <= headroom <= max_waste"),
        ({"max_waste": 1.0}, "1 <= headroom <= max_waste"),
    ],
)
def test_wrong_sizes(options, text):
    with pytest.raises(eb.PlanError, match=text):
        eb.Sizes(**options)


def test_large_rows_are_not_padded_to_many():
    kinds = ArrayKinds()
    small, large = kinds.number((4,), "float32"), kinds.number((2**20,), "float32")
    buckets = store()
    needs = {f"pool {small}": 1, f"pool {large}": 1, f"arena {large}": 2}
    found = buckets.fit(LOOPS, needs, kinds=kinds).sizes
    assert found[f"pool {small}"] == 64
    assert found[f"pool {large}"] <= 2 and found[f"arena {large}"] <= 4


def test_a_plan_holds_large_inputs_about_once():
    images = [np.full((64, 64, 64), k, np.float32) for k in range(3)]  # 1 MiB each
    batched = eb.batch(eb.cell(lambda params, x: params * x.sum()))
    params = jnp.float32(2)
    plan = batched.plan(images, params=params)
    assert sum(each.nbytes for each in jax.tree.leaves(plan)) < 6 * images[0].nbytes
    runner = batched(params, images)
    np.testing.assert_allclose(runner, [2 * x.sum() for x in images], rtol=1e-6)
