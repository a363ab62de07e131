"""Tests that gradients of tables as rows and values equal dense gradients."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from word_tables import (
    VOCABULARY,
    WIDTH,
    assert_close,
    encode,
    leaf,
    loss_of,
    new_params,
    sample,
    to_dense,
)

import edbatch as eb
from edbatch import sparse
from edbatch.gradient.tables import find_tables, new_probes
from edbatch.plan.run import compute_results_and_lookups, run_plan
from edbatch.target import CPU

# One width, except to compare random trees: compiling loops takes most of the time.
SIZES = eb.Sizes(widths=(8,))
BATCHED = eb.batch(encode, params=new_params(), sizes=SIZES)


def check(batched, plan, params, tables="embedding"):
    loss = loss_of(batched)
    value, found = jax.jit(sparse.value_and_grad(loss, tables))(params, plan)
    expected_value, expected = jax.jit(jax.value_and_grad(loss))(params, plan)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    assert_close(to_dense(found), expected)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_rows_and_values_add_up_to_the_dense_gradient(seed):
    batched = eb.batch(encode, params=new_params())
    plan = batched.plan(sample(seed, 1 + 5 * seed))
    assert len({each.width for each in plan.shape.program.loops}) > 1
    found = check(batched, plan, new_params(seed))
    own = found["embedding"]
    assert own.values.shape == (*own.rows.shape, WIDTH)
    assert own.num_rows == VOCABULARY
    assert isinstance(found["W"], jax.Array)


def test_unbatched_gradient():
    params, trees = new_params(), sample(5, 7)
    found = check(BATCHED, BATCHED.plan(trees), params)

    def unbatched(params):
        return sum(jnp.sum(jnp.sin(encode(params, each))) for each in trees)

    assert_close(to_dense(found), jax.grad(unbatched)(params))


def test_every_lookup_is_listed_and_no_other():
    trees = sample(6, 9)
    found = check(BATCHED, BATCHED.plan(trees), new_params())

    def words(tree):
        if isinstance(tree, tuple):
            return [word for child in tree for word in words(child)]
        return [tree] if isinstance(tree, int) else tree

    expected = sorted(word % VOCABULARY for tree in trees for word in words(tree))
    rows = np.asarray(found["embedding"].rows)
    assert sorted(rows[rows < VOCABULARY].tolist()) == expected
    values = np.asarray(found["embedding"].values)
    assert not values[rows == VOCABULARY].any()


def test_several_tables():
    tables = ["embedding", "labels"]
    found = check(BATCHED, BATCHED.plan(sample(1, 8)), new_params(), tables)
    assert found["labels"].values.shape == found["labels"].rows.shape


@pytest.mark.parametrize("jit", [jax.jit, lambda step: step], ids=["jit", "eager"])
def test_a_table_that_no_cell_of_a_minibatch_looks_up(jit):
    """Its gradient is zero, whatever minibatches came before."""
    params, words, bags = new_params(), [1, (2, 3)], [[4, 5, 6]]
    batched = eb.batch(encode, params=params, sizes=SIZES)
    tables = ("embedding", "labels")  # only bags look up labels
    for trees in (words, bags, words):
        loss, plan = loss_of(batched), batched.plan(trees)
        _, found = jit(sparse.value_and_grad(loss, tables))(params, plan)
        expected = jax.grad(loss)(params, plan)
        assert_close(to_dense(found), expected)
        assert bool(jnp.any(expected["labels"])) == (trees is bags)


def test_tables_by_key_path():
    path = (jax.tree_util.DictKey("embedding"),)
    found = check(BATCHED, BATCHED.plan(sample(1, 8)), new_params(), [path])
    assert isinstance(found["embedding"], sparse.SparseRows)


def test_nested_parameters_are_named_as_jax_does():
    def model(params, tree):
        return encode(params["encoder"], tree)

    params = {"encoder": new_params(), "other": [jnp.ones(3)]}
    batched = eb.batch(model, params=params)
    found = check(batched, batched.plan(sample(2, 4)), params, "encoder.embedding")
    assert isinstance(found["encoder"]["embedding"], sparse.SparseRows)
    assert not found["other"][0].any()


def test_without_jit():
    plan, params = BATCHED.plan(sample(2, 5)), new_params()
    value, found = sparse.value_and_grad(loss_of(BATCHED), "embedding")(params, plan)
    _, expected = jax.value_and_grad(loss_of(BATCHED))(params, plan)
    assert_close(to_dense(found), expected)
    assert value.shape == ()


def test_several_calls_in_one_loss_and_other_terms():
    plans = [BATCHED.plan(sample(seed, 6)) for seed in (1, 2)]

    def loss(params):
        first, second = (BATCHED.apply(params, plan) for plan in plans)
        decay = jnp.sum(params["W"] ** 2)
        return jnp.sum(first) * jnp.sum(second) + 0.1 * decay, {"first": first}

    params = new_params()
    transformed = sparse.value_and_grad(loss, "embedding", has_aux=True)
    (value, aux), found = jax.jit(transformed)(params)
    (expected_value, expected_aux), expected = jax.value_and_grad(loss, has_aux=True)(
        params
    )
    np.testing.assert_allclose(value, expected_value, rtol=1e-4)
    assert_close(aux, expected_aux)
    for a, b in zip(
        jax.tree.leaves(to_dense(found)), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_padding_instances():
    plan = BATCHED.plan(sample(3, 5), pad_to=8)

    def loss(params, plan):
        found = BATCHED.apply(params, plan)
        return jnp.sum(found**2, where=plan.instance_mask[:, None])

    params = new_params()
    _, found = jax.jit(sparse.value_and_grad(loss, "embedding"))(params, plan)
    assert_close(to_dense(found), jax.grad(loss)(params, plan))


def test_lists_of_results():
    def model(params, words):
        return [leaf(params, np.int32(word)) for word in words]

    params = new_params()
    batched = eb.batch(model, params=params)
    plan = batched.plan([[1, 2, 3], [4], [1] * 9])

    def loss(params, plan):
        return jnp.sum(jnp.cos(batched.apply(params, plan).values))

    _, found = jax.jit(sparse.value_and_grad(loss, "embedding"))(params, plan)
    assert_close(to_dense(found), jax.grad(loss)(params, plan))


MODES = {
    "in_bounds": lambda table, at: table[at],
    "clip": lambda table, at: jnp.take(table, at, axis=0, mode="clip"),
    "wrap": lambda table, at: jnp.take(table, at, axis=0, mode="wrap"),
    "zeros": lambda table, at: table.at[at].get(mode="fill", fill_value=0),
    "slice": lambda table, at: jax.lax.dynamic_index_in_dim(
        table, at.reshape(-1)[0], keepdims=False
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(), (2,), (2, 2)])
def test_modes_of_indexing_and_numbers_out_of_bounds(mode, shape):
    @eb.cell
    def look_up(params, at):
        return jnp.sin(MODES[mode](params, at)).sum()

    @eb.cell
    def again(params, total, at):
        return total * jnp.cos(MODES[mode](params, at)).sum()

    def model(params, numbers):
        total = look_up(params, numbers[0])
        for number in numbers[1:]:
            total = again(params, total, number)
        return total

    rng = np.random.default_rng(0)
    params = jnp.asarray(rng.normal(size=(53, 2, 3)), jnp.float32)
    least, most = (-53, 53) if mode == "in_bounds" else (-140, 140)
    numbers = [
        list(rng.integers(least, most, (length, *shape), np.int32))
        for length in (1, 2, 5, 3)
    ]
    batched = eb.batch(model, params=params, sizes=SIZES)
    check(batched, batched.plan(numbers), params, tables="")


@pytest.mark.parametrize(
    "compiler",
    [
        eb.Compiler(packing="never"),
        eb.Compiler(hoisting="never"),
        eb.Compiler(remat="always"),
    ],
    ids=["unpacked", "unhoisted", "remat"],
)
def test_compilers(compiler):
    batched = eb.batch(encode, params=new_params(), sizes=SIZES, compiler=compiler)
    check(batched, batched.plan(sample(4, 12)), new_params())


def test_switch_programs():
    params = new_params()
    plan = BATCHED.plan(sample(4, 12)).on(replace(CPU, control="switch"))
    expected = jax.grad(lambda params: jnp.sum(run_plan(params, plan)))(params)
    names = [path[0].key for path, _ in jax.tree.leaves_with_path(params)]
    program = plan.shape.program
    tables = find_tables(program, [names.index("embedding")])

    def probed(probes):
        results, rows = compute_results_and_lookups(params, plan, None, tables, probes)
        return jnp.sum(results[0]), rows

    probes = new_probes(program, tables, params)
    [values], [rows] = jax.grad(probed, has_aux=True)(probes)
    found = sparse.SparseRows(rows, values, VOCABULARY)
    assert_close(found.to_dense(), expected["embedding"])


def test_other_rows_and_padding_stay_out_of_it():
    """A word without a finite derivative affects only its own row."""

    @eb.cell
    def look_up(params, word):
        row = params["embedding"][word]
        return row / jnp.sqrt(jnp.sum(row**2))

    @eb.cell
    def add(params, left, right):
        return left + right

    def model(params, words):
        return functools.reduce(
            functools.partial(add, params), [look_up(params, w) for w in words]
        )

    params = {"embedding": new_params()["embedding"].at[3].set(0)}
    batched = eb.batch(model, params=params, sizes=SIZES)
    words = [[np.int32(w) for w in each] for each in ([3], [5, 6, 7], [1], [9] * 5)]
    plan = batched.plan(words)
    _, found = jax.jit(sparse.value_and_grad(loss_of(batched), "embedding"))(
        params, plan
    )
    dense = np.asarray(found["embedding"].to_dense())
    assert np.isnan(dense[3]).all()
    assert np.isfinite(np.delete(dense, 3, axis=0)).all()
    expected = jax.grad(loss_of(batched))(params, plan)["embedding"]
    np.testing.assert_allclose(dense, expected, rtol=2e-5, atol=2e-6)


def test_no_array_of_the_size_of_the_table_is_made():
    # A size that no other array here has.
    params = new_params() | {"embedding": jnp.ones((4999, WIDTH))}
    batched = eb.batch(encode, params=params, sizes=SIZES)
    plan = batched.plan(sample(3, 5))

    def count(function):
        text = jax.jit(function).lower(params, plan).compile().as_text()
        lines = [each for each in text.splitlines() if " = f32[4999," in each]
        return sum("parameter(" not in each for each in lines)

    def sparse_step(params, plan):
        return sparse.value_and_grad(loss_of(batched), "embedding")(params, plan)

    views = ("bitcast(", "get-tuple-element(", "copy-start(")
    assert count(jax.value_and_grad(loss_of(batched))) > count(sparse_step)
    text = jax.jit(sparse_step).lower(params, plan).compile().as_text()
    made = [
        each
        for each in text.splitlines()
        if " = f32[4999," in each
        and not any(view in each for view in ("parameter(", *views))
    ]
    assert made == []


# Refusals.


def test_rows_that_are_looked_up_often_in_half_a_precision():
    """A sum of ones stops at 256 in bfloat16."""
    rows = jnp.zeros(600, jnp.int32)
    found = sparse.SparseRows(rows, jnp.ones((600, 2), jnp.bfloat16), num_rows=3)
    dense, once = found.to_dense(), found.sum_duplicates()
    assert dense.dtype == once.values.dtype == jnp.bfloat16
    assert float(dense[0, 0]) == float(once.values[0, 0]) == 600
