"""Tests the estimate of the bytes that a gradient keeps."""

import jax
import jax.numpy as jnp
import pytest

import edbatch as eb

HIDDEN = 8


@eb.cell
def leaf(params, vector):
    return vector @ params["w"]


@eb.cell
def join(params, left, right):
    return jnp.tanh(left @ params["w"] + right)


def model(params, vectors):
    state = leaf(params, vectors[0])
    for each in vectors[1:]:
        state = join(params, state, leaf(params, each))
    return state


def planned(instances, **options):
    params = {"w": jnp.eye(HIDDEN)}
    batched = eb.batch(model, params=params, compiler=eb.Compiler(**options))
    return batched.plan([[jnp.ones(HIDDEN)] * 4] * instances)


def test_every_part_is_counted():
    plan = planned(3)
    rows = dict(plan.shape.program.arena_rows)
    [pool] = plan.pools.values()
    row = 4 * HIDDEN
    found = eb.gradient_memory(plan)
    assert found.values == row * (sum(rows.values()) + len(pool))
    assert found.cotangents == found.values
    # The type with operands has one product, which reads one row and outputs one; tapes
    # are allocated in blocks of 128 rows.
    assert found.tapes == 2 * row * 128
    integers = [plan.stream, plan.trips, *plan.rows, *plan.lengths]
    assert found.plan == 4 * sum(each.size for each in integers)
    assert found.total == sum((found.values, found.cotangents, found.tapes, found.plan))


def test_remat_keeps_no_tapes_of_products():
    plan = planned(3)
    without = eb.gradient_memory(plan, remat=True)
    assert without.tapes == 0
    assert without == eb.gradient_memory(planned(3, remat="always"))
    assert without.values == eb.gradient_memory(plan).values


def test_memory_grows_linearly_with_nodes():
    small, large = (eb.gradient_memory(planned(n)).total for n in (2000, 8000))
    assert large == pytest.approx(4 * small, rel=0.1)


def test_a_plan_that_was_transformed_is_counted_like_before():
    plan = planned(3)
    moved = jax.tree.map(jnp.asarray, plan)
    assert moved.report is None
    assert eb.gradient_memory(moved) == eb.gradient_memory(plan)


def test_a_plan_of_several_devices_is_refused():
    batched = eb.batch(model, params={"w": jnp.eye(HIDDEN)})
    mesh = jax.make_mesh((1,), ("data",))
    plan = batched.sharded(mesh).plan([[jnp.ones(HIDDEN)] * 4])
    with pytest.raises(eb.PlanError, match="received ShardedPlan"):
        eb.gradient_memory(plan)
