"""Tests which gradients of tables as rows and values are refused, and why."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from word_tables import encode, loss_of, new_params, sample

import edbatch as eb
from edbatch import sparse
from edbatch.errors import PlanError

BATCHED = eb.batch(encode, params=new_params(), sizes=eb.Sizes(widths=(8,)))


def test_a_table_that_the_loss_reads_too():
    plan = BATCHED.plan(sample(3, 5))

    def tied(params, plan):
        return jnp.sum(BATCHED.apply(params, plan) @ params["embedding"].T)

    with pytest.raises(PlanError, match=r"'embedding'.* also reads"):
        jax.jit(sparse.value_and_grad(tied, "embedding"))(new_params(), plan)


@pytest.mark.parametrize(
    "inside",
    [
        lambda loss: jax.lax.fori_loop(0, 2, lambda _, total: total + loss(), 0.0),
        lambda loss: jax.lax.cond(jnp.bool(True), loss, lambda: 2 * loss()),
        lambda loss: jnp.sum(jax.vmap(lambda s: s * loss())(jnp.arange(3.0))),
        lambda loss: jax.jit(lambda s: s * loss())(2.0),
        lambda loss: jax.checkpoint(lambda s: s * loss())(2.0),
    ],
    ids=["loop", "cond", "vmap", "jit", "checkpoint"],
)
@pytest.mark.parametrize("jit", [jax.jit, lambda step: step], ids=["jit", "eager"])
def test_calls_inside_another_transformation(inside, jit):
    plan = BATCHED.plan(sample(3, 5))

    def loss(params):
        return inside(lambda: loss_of(BATCHED)(params, plan))

    with pytest.raises(PlanError, match="inside another transformation of the loss"):
        jit(sparse.value_and_grad(loss, "embedding"))(new_params())


def test_a_table_that_a_cell_reads_otherwise():
    @eb.cell
    def score(params, word):
        return params["embedding"] @ params["embedding"][word]

    params = new_params()
    batched = eb.batch(score, params=params)
    plan = batched.plan([np.int32(1), np.int32(2)])
    with pytest.raises(PlanError, match=r"embedding.*score.* does not read it by"):
        sparse.value_and_grad(loss_of(batched), "embedding")(params, plan)


def test_a_table_that_no_batched_function_is_called_with():
    plan = BATCHED.plan(sample(3, 5))

    def loss(params, plan):
        return jnp.sum(params["W"])

    with pytest.raises(PlanError, match="no batched function"):
        sparse.value_and_grad(loss, "embedding")(new_params(), plan)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ("embeddings", "names no array.*'embedding'"),
        ([], "at least one"),
        (3, "received int"),
    ],
)
def test_names_that_are_none(tables, message):
    plan = BATCHED.plan(sample(3, 5))
    with pytest.raises(PlanError, match=message):
        sparse.value_and_grad(loss_of(BATCHED), tables)(new_params(), plan)
