"""Gradients of tables as rows and values: the same numbers as dense ones."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import edbatch as eb
from edbatch import sparse
from edbatch.errors import PlanError
from edbatch.gradient.tables import find_tables, new_probes
from edbatch.plan.run import compute_results_and_lookups, run_plan
from edbatch.target import CPU
from edbatch.training import Trainer

VOCABULARY, WIDTH = 37, 6


@eb.cell
def leaf(params, word):
    return jnp.tanh(params["embedding"][word] @ params["W"])


@eb.cell
def bag(params, words):
    """Several rows at once; negative numbers count from the end."""
    return jnp.tanh(params["embedding"][words]).sum(0) + params["labels"][words[0] % 5]


@eb.cell
def join(params, left, right):
    return jnp.tanh(params["W"] @ (left + 2 * right))


def encode(params, tree):
    if isinstance(tree, (int, np.integer)):
        return leaf(params, np.int32(tree))
    if isinstance(tree, list):
        return bag(params, np.array(tree, np.int32))
    return join(params, *(encode(params, child) for child in tree))


def new_params(seed=0):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return {
        "embedding": normal(VOCABULARY, WIDTH),
        "labels": normal(5, 1)[:, 0],
        "W": normal(WIDTH, WIDTH) / WIDTH,
    }


def random_tree(rng, depth):
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.4:
            return rng.integers(-VOCABULARY, VOCABULARY, 3).tolist()
        return int(rng.integers(VOCABULARY))
    return random_tree(rng, depth - 1), random_tree(rng, depth - 1)


def sample(seed, count):
    rng = np.random.default_rng(seed)
    return [random_tree(rng, 4) for _ in range(count)]


def loss_of(batched):
    def loss(params, plan):
        return jnp.sum(jnp.sin(batched.apply(params, plan)))

    return loss


def to_dense(gradient):
    return jax.tree.map(
        lambda g: g.to_dense() if isinstance(g, sparse.SparseRows) else g,
        gradient,
        is_leaf=lambda g: isinstance(g, sparse.SparseRows),
    )


def assert_close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


BATCHED = eb.batch(encode, params=new_params())


def check(batched, plan, params, tables="embedding"):
    loss = loss_of(batched)
    value, found = jax.jit(sparse.value_and_grad(loss, tables))(params, plan)
    expected_value, expected = jax.jit(jax.value_and_grad(loss))(params, plan)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)
    assert_close(to_dense(found), expected)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_rows_and_values_add_up_to_the_dense_gradient(seed):
    plan = BATCHED.plan(sample(seed, 1 + 5 * seed))
    found = check(BATCHED, plan, new_params(seed))
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
    most = 53 if mode == "in_bounds" else 140
    numbers = [
        list(rng.integers(-53, most, (length, *shape), np.int32))
        for length in (1, 2, 5, 3)
    ]
    batched = eb.batch(model, params=params)
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
    batched = eb.batch(encode, params=new_params(), compiler=compiler)
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


def test_other_lanes_and_padding_stay_out_of_it():
    """A word without a slope spoils its own row only."""

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
    batched = eb.batch(model, params=params)
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
    # A size that nothing else here has.
    params = new_params() | {"embedding": jnp.ones((4999, WIDTH))}
    batched = eb.batch(encode, params=params)
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


# What is refused.


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
    with pytest.raises(PlanError, match=r"embedding.*score.* otherwise than"):
        sparse.value_and_grad(loss_of(batched), "embedding")(params, plan)


def test_a_table_that_nothing_looks_up():
    plan = BATCHED.plan(sample(3, 5))

    def loss(params, plan):
        return jnp.sum(params["W"])

    with pytest.raises(PlanError, match="no batched function"):
        sparse.value_and_grad(loss, "embedding")(new_params(), plan)
    batched = eb.batch(encode, params=new_params())
    plan = batched.plan([1, 2])  # no bag, so no labels
    with pytest.raises(PlanError, match="no cell"):
        sparse.value_and_grad(loss_of(batched), "labels")(new_params(), plan)


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


def test_reduced_precision_is_refused_with_a_reason():
    batched = eb.batch(encode, params=new_params(), compute_dtype=jnp.bfloat16)
    plan = batched.plan(sample(3, 5))
    with pytest.raises(PlanError, match="otherwise than"):
        sparse.value_and_grad(loss_of(batched), "embedding")(new_params(), plan)


# What is done with them.


def random_rows(seed, num_rows=9, width=4):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, num_rows + 1, 15).astype(np.int32)
    values = rng.normal(size=(15, width)).astype(np.float32)
    values[rows == num_rows] = 0
    return sparse.SparseRows(jnp.asarray(rows), jnp.asarray(values), num_rows)


def test_sum_duplicates():
    found = random_rows(0)
    once = jax.jit(lambda each: each.sum_duplicates())(found)
    assert_close(once.to_dense(), found.to_dense())
    rows = np.asarray(once.rows)
    real = rows[rows < 9]
    assert len(set(real.tolist())) == len(real)
    assert sorted(set(np.asarray(found.rows).tolist()) - {9}) == sorted(real.tolist())


def test_repr():
    assert repr(random_rows(0)) == "SparseRows(15 rows of float32[9, 4])"


def dense(gradient):
    return jax.tree.map(
        lambda g: g.to_dense() if isinstance(g, sparse.SparseRows) else g,
        gradient,
        is_leaf=lambda g: isinstance(g, sparse.SparseRows),
    )


def random_gradient(seed):
    rng = np.random.default_rng(seed)
    bias = jnp.asarray(rng.normal(size=4), jnp.float32)
    return {"table": random_rows(seed), "bias": bias, "more": [random_rows(seed + 9)]}


def random_state(optimizer):
    rng = np.random.default_rng(0)
    shapes = {"table": (9, 4), "bias": (4,), "more": [(9, 4)]}
    params = jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
        shapes,
        is_leaf=lambda each: isinstance(each, tuple),
    )
    return params, optimizer.init(params)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(0.1),
        optax.adagrad(0.1),
        optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.1)),
    ],
    ids=["sgd", "adagrad", "clipped"],
)
def test_where_zeros_change_nothing_it_is_what_dense_gradients_do(optimizer):
    params, state = expected, expected_state = random_state(optimizer)
    update = jax.jit(functools.partial(sparse.update, optimizer))
    for seed in range(4):
        gradient = random_gradient(seed)
        params, state = update(gradient, state, params)
        updates, expected_state = optimizer.update(
            dense(gradient), expected_state, expected
        )
        expected = optax.apply_updates(expected, updates)
        assert_close((params, state), (expected, expected_state))


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(0.1),
        optax.adamw(0.1),
        optax.sgd(0.1, 0.9),
        optax.chain(
            optax.add_decayed_weights(
                0.1, mask={"table": True, "bias": False, "more": [False]}
            ),
            optax.adam(optax.linear_schedule(0.1, 0.01, 3)),
        ),
        optax.masked(optax.adam(0.1), {"table": True, "bias": True, "more": [False]}),
    ],
    ids=["adam", "adamw", "momentum", "decayed", "masked"],
)
def test_optimizers_move_only_the_rows_that_were_looked_up(optimizer):
    params, state = expected, expected_state = random_state(optimizer)
    update = jax.jit(functools.partial(sparse.update, optimizer))
    for seed in range(4):
        gradient = random_gradient(seed)
        params, state = update(gradient, state, params)

        def keep(new, old, rows):
            if not isinstance(rows, sparse.SparseRows):
                return new
            touched = np.zeros(10, bool)
            touched[np.asarray(rows.rows)] = True
            return jnp.where(touched[:9, None], new, old)

        updates, after = optimizer.update(dense(gradient), expected_state, expected)
        moved = optax.apply_updates(expected, updates)
        expected = jax.tree.map(keep, moved, expected, gradient)
        # By shape and place: tables before and after in each copy of the parameters.
        expected_state = jax.tree_util.tree_map_with_path(
            lambda path, new, old, gradient=gradient: keep(
                new, old, owner_of(path, gradient)
            ),
            after,
            expected_state,
        )
        assert_close((params, state), (expected, expected_state))


def owner_of(path, gradient):
    """The gradient of what a leaf of an optimizer's state is kept for."""
    keys = [getattr(key, "key", None) for key in path]
    if "table" in keys:
        return gradient["table"]
    return gradient["more"][0] if "more" in keys else None


def test_an_array_by_itself():
    optimizer, table = optax.adam(0.1), jnp.ones((9, 4))
    gradient = random_rows(1)
    found, _ = sparse.update(optimizer, gradient, optimizer.init(table), table)
    rows = np.asarray(gradient.rows)
    moved = np.zeros(10, bool)
    moved[rows] = True
    assert (np.asarray(found != 1).any(1) == moved[:9]).all()


def test_dense_gradients_alone():
    optimizer = optax.adam(0.1)
    params, state = random_state(optimizer)
    gradient = dense(random_gradient(0))
    found = sparse.update(optimizer, gradient, state, params)
    updates, expected = optimizer.update(gradient, state, params)
    assert_close(found, (optax.apply_updates(params, updates), expected))


def test_state_of_other_shapes_is_refused():
    optimizer = optax.adafactor(0.1, min_dim_size_to_factor=2)
    params, state = random_state(optimizer)
    with pytest.raises(PlanError, match="keeps an array like the table"):
        sparse.update(optimizer, random_gradient(0), state, params)


@pytest.mark.parametrize("tables", [None, "embedding"])
def test_trainers_take_tables(tables):
    """The same losses, step by step, where zeros change nothing."""
    targets = np.arange(6, dtype=np.float32)
    trees = sample(2, 6)

    def loss(params, plan, targets):
        found = BATCHED.apply(params, plan).sum(1) - targets
        return jnp.mean(found**2, where=plan.instance_mask)

    trainer = Trainer(loss, optax.adagrad(0.05), new_params(), targets, tables=tables)
    for minibatch in eb.Loader(BATCHED, trees, 4, seed=1).epochs(2):
        trainer.step(minibatch)
    trainer.finish()
    params, state = new_params(), optax.adagrad(0.05).init(new_params())
    losses = []
    for minibatch in eb.Loader(BATCHED, trees, 4, seed=1).epochs(2):
        own = targets[minibatch.padded_index]
        value, bars = jax.value_and_grad(loss)(params, minibatch.plan, own)
        updates, state = optax.adagrad(0.05).update(bars, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    np.testing.assert_allclose(trainer.losses, losses, rtol=1e-4)
