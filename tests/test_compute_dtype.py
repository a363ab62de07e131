"""Tests cells that compute in bfloat16 with float32 parameters, gradients and sums."""

import copy
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loaded_data import Trees
from trees import all_states, encode, make_params, sample_trees

import edbatch as eb
from edbatch.models import WORKLOADS, get_workload

SIZES = eb.Sizes(widths=(8,))
HALF = jnp.bfloat16

pytestmark = pytest.mark.usefixtures("quick_compiles")


def new_batched(model, params, **options):
    return eb.batch(model, params=params, sizes=SIZES, compute_dtype=HALF, **options)


QUICK = ("tree-lstm", "bilstm-tagger")


@pytest.mark.parametrize(
    "name",
    [
        each if each in QUICK else pytest.param(each, marks=pytest.mark.slow)
        for each in WORKLOADS
    ],
)
def test_workloads_compute_what_their_cells_compute_in_bfloat16(name):
    workload = get_workload(name, vocabulary_size=20)
    params = workload.init_params(jax.random.key(0), 8)
    batched = new_batched(workload.model, params)
    minibatch = workload.sample(np.random.default_rng(0), 3)
    found = eb.verify(batched, params, minibatch)
    assert found.max_gradient_error is not None
    plan = batched.plan(minibatch)
    outputs = jax.tree.leaves(batched.apply(params, plan))
    assert jnp.dtype(HALF) in {each.dtype for each in outputs}
    own = jax.tree.leaves(jax.grad(total, 1)(batched, params, plan))
    assert {each.dtype for each in own} == {jnp.dtype("float32")}


def total(batched, params, plan):
    leaves = jax.tree.leaves(batched.apply(params, plan))
    floats = [each for each in leaves if jnp.issubdtype(each.dtype, jnp.floating)]
    return sum(each.astype(jnp.float32).sum() for each in floats)


def products(function, *args):
    """The operand dtypes of a function's products."""
    text = str(jax.make_jaxpr(function)(*args))
    dots = re.findall(r"dot_general\[.*?\] (\w+) (\w+)", text, flags=re.DOTALL)
    dtypes = dict(re.findall(r"(\w+):(\w+)\[", text))
    return {dtypes[each] for pair in dots for each in pair}


@pytest.mark.parametrize(
    "compiler",
    [
        eb.Compiler(),
        eb.Compiler(packing="never", hoisting="never", sharing="never"),
        eb.Compiler(hoisting="always", slices="always", remat="always"),
    ],
    ids=["auto", "never", "always"],
)
def test_all_products_read_bfloat16(compiler):
    params, trees = make_params(8), sample_trees(0, 9)
    batched = new_batched(encode, params, compiler=compiler)
    eb.verify(batched, params, trees)
    plan = batched.plan(trees)
    assert products(lambda p: batched.apply(p, plan), params) == {"bf16"}
    gradient = jax.grad(lambda p: total(batched, p, plan))
    assert products(gradient, params) == {"bf16"}
    plain = eb.batch(encode, params=params, sizes=SIZES, compiler=compiler)
    assert products(lambda p: plain.apply(p, plain.plan(trees)), params) == {"f32"}


@eb.cell
def shift(bias, x):
    return x + bias


@eb.cell
def times(weight, x):
    return weight @ x


def chain(params, length):
    x = shift(params["bias"], np.zeros(2, np.float32))
    for _ in range(length - 1):
        x = shift(params["bias"], x)
    return x


def rows(params, length):
    return [times(params["weight"], np.ones(64, np.float32)) for _ in range(length)]


@pytest.mark.parametrize("packing", ["auto", "never"])
def test_sums_over_nodes_lose_nothing(packing):
    """In bfloat16, 256 + 1 is 256."""
    compiler = eb.Compiler(packing=packing)
    params = {"bias": jnp.zeros(2), "weight": jnp.ones((64, 64))}
    for model, name in ((chain, "bias"), (rows, "weight")):
        batched = new_batched(model, params, compiler=compiler)
        plan = batched.plan([3000, 100])
        own = jax.grad(lambda p: total(batched, p, plan))(params)[name]  # noqa: B023
        np.testing.assert_allclose(own, 3100.0, rtol=2**-8)


@eb.cell
def look(params, word):
    return params["table"][word]


@eb.cell
def take(params, words):
    return jnp.take(params["table"], words, axis=0).sum(0)


@eb.cell
def expert(params, k, x):
    return params["experts"][k] @ x


@eb.cell
def next_of(params, x):
    return x + params["bias"][0]


def looked_up(params, words):
    return [look(params, word) for word in words]


def taken(params, words):
    return [take(params, np.array([word, word, 2], np.int32)) for word in words]


def experts(params, words):
    return [expert(params, word, np.ones(2, np.float32)) for word in words]


def read_often(params, words):
    first = look(params, words[0])
    return [next_of(params, first) for _ in words]


@eb.cell
def scaled(scale, x):
    return x * scale


@eb.cell
def gained(gain, x):
    return x * gain[:, None]


@pytest.mark.parametrize("options", [{}, {"compiler": eb.Compiler(packing="never")}])
@pytest.mark.parametrize("of_bfloat16", [False, True])
def test_parameters_that_are_broadcast(options, of_bfloat16):
    """XLA sums bfloat16 arrays in bfloat16, which is inexact for many terms."""
    x = np.full((2, 64), 0.4375, np.float32)
    for cell, shape in ((scaled, ()), (gained, (2,))):
        params = jnp.ones(shape, HALF if of_bfloat16 else jnp.float32)
        own = {"sizes": eb.Sizes(widths=(512,)), "params": params, **options}
        dtype = {} if of_bfloat16 else {"compute_dtype": HALF}
        batched = eb.batch(lambda p, x, cell=cell: cell(p, x), **own, **dtype)
        # The sum over the elements of one instance is part of the model itself.
        alone, all_of_them = (
            jax.grad(lambda p, n=n: total(batched, p, batched.plan([x] * n)))(params)  # noqa: B023
            for n in (1, 700)
        )
        expected = 700 * alone.astype(float)
        np.testing.assert_allclose(all_of_them.astype(float), expected, rtol=2**-8)


LOOKUPS = pytest.mark.parametrize(
    ("model", "name", "factor"),
    [
        (looked_up, "table", [0, 1, 0]),
        (taken, "table", [0, 2, 1]),
        (experts, "experts", [0, 1, 0]),
        (read_often, "table", [0, 1, 0]),
    ],
)


@LOOKUPS
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compiler": eb.Compiler(packing="never", hoisting="never")},
        {"compiler": eb.Compiler(hoisting="always")},
    ],
    ids=["auto", "never", "hoisted"],
)
def test_gradients_of_rows_are_summed_in_float32(model, name, factor, options):
    """In bfloat16 a sum of ones stays at 256."""
    params = {
        "table": jnp.ones((3, 4)),
        "experts": jnp.ones((3, 2, 2)),
        "bias": jnp.zeros(1),
    }
    batched = new_batched(model, params, **options)
    plan = batched.plan([[1] * 700, [1] * 41])
    own = jax.grad(lambda p: total(batched, p, plan))(params)[name]
    rows = own.reshape(3, -1)
    expected = 741.0 * np.array(factor)[:, None]
    # The cotangent of a lookup with many readers is itself rounded to bfloat16.
    rtol = 2**-8 if model is read_often else 0
    np.testing.assert_allclose(rows, np.broadcast_to(expected, rows.shape), rtol=rtol)


@jax.custom_vjp
def stand_still(params):
    """Clips gradients at 30, as sums of ones in bfloat16 stop at 256."""
    return params


stand_still.defvjp(
    lambda params: (params, None),
    lambda _, bars: (jax.tree.map(lambda bar: jnp.clip(bar, -30, 30), bars),),
)


class Stalled:
    """A batched function whose gradients look as if summed in bfloat16."""

    def __init__(self, batched):
        self._batched = batched

    def __getattr__(self, name):
        return getattr(self._batched, name)

    def apply(self, params, plan, **options):
        return self._batched.apply(stand_still(params), plan, **options)


def test_verify_finds_sums_that_stand_still():
    """Only terms of the same sign reveal it."""
    params = {"table": jnp.ones((3, 4)), "bias": jnp.zeros(1)}
    batched = new_batched(looked_up, params)
    instances = [[1] * 100, [1] * 20]
    eb.verify(batched, params, instances)
    with pytest.raises(eb.VerificationError, match=r"gradient of params\['table'\]"):
        eb.verify(Stalled(batched), params, instances)


def test_verify_knows_that_jax_itself_stands_still():
    """JAX sums the cotangents of 600 readers of one value in bfloat16."""
    params = {"table": jnp.ones((3, 4)), "bias": jnp.zeros(1)}
    batched = new_batched(read_often, params)
    assert eb.verify(batched, params, [[1] * 600]).max_gradient_error < 0.1


def test_parameters_in_bfloat16_are_rounded_once():
    params = {"table": jnp.ones((3, 4), HALF)}
    batched = eb.batch(looked_up, params=params, sizes=SIZES)
    plan = batched.plan([[1] * 700, [1] * 41])
    own = jax.grad(lambda p: total(batched, p, plan))(params)["table"]
    assert own.dtype == HALF
    np.testing.assert_array_equal(own[1], jnp.full(4, 741.0).astype(HALF))


def layered(params, words):
    found = []
    for k, word in enumerate(words):
        part = params["layers"][k % 4]
        found.append(look(part, word))
    return found


def test_no_write_of_rows_converts_an_arena():
    """On CPUs XLA would convert the arena to float32 and back for each chunk."""
    params, trees = make_params(8), sample_trees(0, 9)
    batched = new_batched(encode, params)
    plan = batched.plan(trees)
    lowered = jax.jit(lambda p: batched.apply(p, plan)).lower(params)
    compiled = lowered.compile().as_text()
    shapes = {
        f"[{rows},{','.join(map(str, plan.shape.program.types.avals[kind].shape))}]"
        for kind, rows in plan.shape.program.arena_rows
    }
    assert any(f"u16{each}" in compiled for each in shapes)
    # Results are read once, after the loops.
    assert sum(compiled.count(f"f32{each}") for each in shapes) <= len(plan.rows)


def test_memory_of_cotangents_that_are_summed_in_float32():
    params = {"table": jnp.ones((3, 4))}
    plan = new_batched(looked_up, params).plan([[1] * 9])
    [numbers], [(_, rows)] = plan.pools.values(), plan.shape.program.arena_rows
    found = eb.gradient_memory(plan)
    assert found.values == 2 * 4 * rows + 4 * len(numbers)
    assert found.cotangents == 4 * 4 * rows


def test_families_sum_rows_in_float32():
    params = {"layers": [{"table": jnp.ones((3, 4))} for _ in range(4)]}
    batched = new_batched(layered, params)
    plan = batched.plan([[1] * 4 * 700, [1] * 4 * 41])
    own = jax.grad(lambda p: total(batched, p, plan))(params)
    expected = np.zeros((3, 4))
    expected[1] = 741
    for each in jax.tree.leaves(own):
        np.testing.assert_array_equal(each, expected)


def test_rows_and_values_of_tables():
    params = {"table": jnp.ones((900, 4))}
    batched = new_batched(looked_up, params)
    plan = batched.plan([[1] * 700, [1] * 41])
    value, gradient = eb.sparse.value_and_grad(
        lambda p: total(batched, p, plan), tables=["table"]
    )(params)
    assert value == 741 * 4
    dense = gradient["table"].to_dense()
    assert dense.dtype == jnp.float32
    np.testing.assert_array_equal(dense[1], 741.0)
    assert not dense[2:].any() and not dense[0].any()


@eb.cell(static=("scale",))
def mixed(params, word, flag, x, scale):
    assert params["table"].dtype == x.dtype == HALF
    assert word.dtype == jnp.int32 and flag.dtype == jnp.bool_
    row = params["table"][word]
    exact = x.astype(jnp.float32) * scale
    return jnp.where(flag, row, inner(row)), exact, word


@eb.cell
def inner(row):
    return row * 2


def of_all_kinds(params, instance):
    row, exact, word = mixed(params, *instance, scale=0.5)
    return {"row": row, "exact": exact, "word": word, "flag": np.bool_(True)}


def test_what_is_cast_and_what_is_not():
    params = {"table": jax.random.normal(jax.random.key(0), (5, 3))}
    instances = [(np.int32(k), np.bool_(k % 2), np.float32(1 + 2**-12)) for k in (1, 2)]
    batched = new_batched(of_all_kinds, params)
    found = batched(params, instances)
    assert {name: str(each.dtype) for name, each in found.items()} == {
        "row": "bfloat16",
        "exact": "float32",
        "word": "int32",
        "flag": "bool",
    }
    assert found["exact"].tolist() == [0.5, 0.5]
    eb.verify(batched, params, instances)


def test_lists_meshes_and_values():
    params, trees = make_params(), sample_trees(0, 5)
    batched = new_batched(all_states, params)
    eb.verify(batched, params, trees)
    found = batched(params, trees)
    assert isinstance(found, eb.Ragged) and found.values.dtype == HALF
    sharded = new_batched(encode, params).sharded()
    eb.verify(sharded, params, trees)
    asking = new_batched(asks, params)
    eb.verify(asking, params, trees)
    assert asking(params, trees).dtype == HALF


def asks(params, tree):
    state = encode(params, tree)[0]
    seen = eb.value(state)
    assert seen.dtype == HALF
    return times(params["leaf"], state) if seen[0] > 0 else state


def test_families_share_loops():
    params = {"layers": [jnp.full((4, 4), 0.1 * k) for k in range(1, 7)]}
    batched = new_batched(stack, params)
    instances = [np.ones(4, np.float32), np.zeros(4, np.float32)]
    eb.verify(batched, params, instances)
    plan = batched.plan(instances)
    # The first layer reads an external input, all others read values of nodes.
    assert len({each.type_id for each in plan.shape.program.loops}) == 2
    own = jax.grad(lambda p: total(batched, p, plan))(params)
    assert {each.dtype for each in jax.tree.leaves(own)} == {jnp.dtype("float32")}


def stack(params, x):
    for layer in params["layers"]:
        x = times(layer, x)
    return x


def test_other_processes_compute_in_it_too():
    params, trees = make_params(), [Trees(6)[k] for k in range(6)]
    batched = new_batched(encode, params)
    expected = batched(params, trees)[0]
    for each in (copy.copy(batched), pickle.loads(pickle.dumps(batched))):
        np.testing.assert_array_equal(each(params, trees)[0], expected)
    kept = pickle.loads(pickle.dumps(batched.record_all(trees)))
    np.testing.assert_array_equal(batched(params, kept)[0], expected)
    fresh = new_batched(encode, params)
    loader = eb.Loader(fresh, trees, 6, shuffle=False, workers=1)
    [item] = loader
    np.testing.assert_array_equal(fresh.apply(params, item.plan)[0], expected)
    record = pickle.loads(pickle.dumps(eb.grain.RecordBatch(fresh)))
    batch = eb.grain.PlanBatch(fresh)(record(trees))
    np.testing.assert_array_equal(fresh.apply(params, batch.plan)[0], expected)


def test_recordings_are_of_one_dtype():
    params = make_params()
    kept = new_batched(encode, params).record((1, 2))
    plain = eb.batch(encode, params=params)
    with pytest.raises(eb.PlanError, match=r"compute_dtype=bfloat16 and this .* None"):
        plain.plan([kept])


@pytest.mark.parametrize("dtype", ["int32", "float64", 3, object(), "bf16"])
def test_dtypes_that_cells_cannot_compute_in(dtype):
    with pytest.raises(eb.PlanError, match=r"compute_dtype of eb\.batch is one of"):
        eb.batch(encode, compute_dtype=dtype)


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_float32_is_what_parameters_have(dtype):
    params, trees = make_params(), sample_trees(0, 4)
    found = eb.batch(encode, sizes=SIZES, compute_dtype=dtype)(params, trees)[0]
    plain = eb.batch(encode, sizes=SIZES)(params, trees)[0]
    np.testing.assert_array_equal(found, plain)
