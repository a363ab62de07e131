"""Tests that parameter cotangents are computed once from tapes, not chunk by chunk."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.cell import weight_gradient
from edbatch.cell.backward import TapedCell, taped_cell
from edbatch.cell.program import cell_program
from edbatch.target import CPU, CPU_OF_ONE_CORE, GPU

pytestmark = pytest.mark.default_flags

WORDS, HIDDEN = 50, 6


@eb.cell
def word(params, index):
    return params["table"][index]


@eb.cell
def step(params, state, x):
    return jnp.tanh(params["w"] @ state + x + params["b"])


@eb.cell
def double(params, state):
    """Reads the matrix twice, once transposed."""
    w = params["w"]
    return jnp.exp(-(w.T @ state)) * params["gain"] + w @ state


def model(params, words):
    state = word(params, words[0])
    for each in words[1:]:
        state = step(params, state, word(params, each))
    return double(params, state)


def make_params():
    keys = jax.random.split(jax.random.key(0), 4)
    return {
        "table": jax.random.normal(keys[0], (WORDS, HIDDEN)),
        "w": jax.random.normal(keys[1], (HIDDEN, HIDDEN)) / 3,
        "b": jax.random.normal(keys[2], (HIDDEN,)),
        "gain": jnp.float32(0.7),
        "unused": jnp.ones(3),
        "number": jnp.int32(4),
    }


SENTENCES = [[1, 2, 3], [4], [1, 1, 1, 1, 1], [7, 8], [9, 1, 2, 3]]


def types_of(batched):
    batched.plan(SENTENCES)
    return {each.key.cell: each for each in batched.types.types}


@pytest.mark.parametrize("packing", [False, True])
def test_large_parameters_are_taped_and_small_ones_summed(packing):
    batched = eb.batch(model, params=make_params())
    types = types_of(batched)

    def of(name):
        return taped_cell(types[name], batched.types, packing)

    def primitives(cell):
        return sorted(site.eqn.primitive.name for site in cell.sites)

    assert primitives(of("word")) == ["dynamic_slice"] and of("word").direct == ()
    assert primitives(of("step")) == ["dot_general"]
    assert len(of("step").direct) == 1  # the bias
    assert set(primitives(of("double"))) == {"dot_general"}


@pytest.mark.parametrize("packing", [False, True])
def test_the_gradient_is_that_of_the_model(packing):
    compiler = eb.Compiler(packing="auto" if packing else "never")
    batched = eb.batch(model, params=make_params(), compiler=compiler)
    eb.verify(batched, make_params(), SENTENCES)


@pytest.mark.parametrize("packing", [False, True])
def test_running_again_gives_what_running_gave(packing):
    batched = eb.batch(model, params=make_params())
    types = types_of(batched)
    node_type = types["double"]
    packed = cell_program(node_type, batched.types, packing).pack(make_params())
    cell = taped_cell(node_type, batched.types, packing)
    inputs = ([jnp.arange(float(HIDDEN))], [], [])
    outputs, gives, _ = cell.forward(packed, *inputs)
    direct = [packed[k] for k in cell.direct]
    zeros = jax.tree.map(jnp.zeros_like, gives)
    both = packed, cell.transpose_weights(packed)
    again, _ = cell.recompute(True, direct, inputs, zeros, *both, gives)
    jax.tree.map(np.testing.assert_array_equal, outputs, again)
    # Taped values are used as given, so nothing is computed twice.
    other, _ = cell.recompute(
        True, direct, inputs, zeros, *both, jax.tree.map(jnp.ones_like, gives)
    )
    assert not np.allclose(outputs[0], other[0])


def test_no_array_of_a_tables_size_is_touched_in_a_loop():
    params = make_params()
    batched = eb.batch(model, params=params, sizes=eb.Sizes(widths=(4, 8)))
    plan = batched.plan(SENTENCES)

    def loss(table):
        return batched.apply(params | {"table": table}, plan).sum()

    text = jax.jit(jax.grad(loss)).lower(params["table"]).compile().as_text()
    inside, touched = "", {}
    for line in text.splitlines():
        if line and not line[0].isspace():
            inside = line.split(" ")[0]
        result = line.partition(" = ")[2].partition(" ")[0]
        if f"f32[{WORDS},{HIDDEN}]" in result and " parameter(" not in line:
            touched.setdefault(inside, []).append(line)
    written = [
        line
        for lines in touched.values()
        for line in lines
        if any(f" {name}(" in line for name in ("add", "dynamic-update-slice", "copy"))
        and "while" in line
    ]
    assert touched and written == []


def test_a_parameter_that_several_cells_read_gets_all_of_its_cotangent():
    params = make_params()
    batched = eb.batch(model, params=params)
    plan = batched.plan(SENTENCES)
    found = jax.grad(lambda p: batched.apply(p, plan).sum(), allow_int=True)(params)
    expected = jax.grad(
        lambda p: sum(model(p, each).sum() for each in SENTENCES), allow_int=True
    )(params)
    for name in ("table", "w", "b", "gain", "unused"):
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-5, atol=1e-5)
    assert found["number"].dtype == jax.dtypes.float0


@pytest.mark.parametrize("used", [0, 1, 4, 5, 15, 16, 17, 31, 33, 39, 40])
@pytest.mark.parametrize("blocks", [(16, 4), (16, 8, 4), (128, 4)])
def test_a_contraction_goes_over_the_rows_in_use(monkeypatch, blocks, used):
    monkeypatch.setattr(weight_gradient, "_BLOCKS", blocks)
    batched = eb.batch(model, params=make_params())
    node_type = types_of(batched)["step"]
    cell = TapedCell(
        cell_program(node_type, batched.types, True), node_type, batched.types
    )
    packed = cell_program(node_type, batched.types, True).pack(make_params())
    rng = np.random.default_rng(used)
    [[reads]], [[bars]] = (
        [[rng.normal(size=tape.shape).astype(np.float32) for tape in site]]
        for [site] in (cell.new_inputs(40), cell.new_outputs(40))
    )
    bars[used:] = 0
    reads[-(-used // 4) * 4 :] = np.nan  # these rows are never read
    found = cell.contract(packed, [[reads]], [[bars]], None, jnp.int32(used))
    [bar] = found.values()
    expected = np.einsum("no,ni->oi", bars[:used], reads[:used])
    np.testing.assert_allclose(bar, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [128, 200, 1024, 1030])
def test_no_product_of_whole_tapes_is_computed_beside_that_of_blocks(rows):
    """XLA hoists loop-invariant operations out of a loop."""
    batched = eb.batch(model, params=make_params())
    node_type = types_of(batched)["step"]
    program = cell_program(node_type, batched.types, True)
    cell = TapedCell(program, node_type, batched.types)
    packed = program.pack(make_params())

    def contract(used, inputs, bars):
        return cell.contract(packed, inputs, bars, None, used)

    tapes = cell.new_inputs(rows), cell.new_outputs(rows)
    lowered = jax.jit(contract).lower(jnp.int32(0), *tapes)
    entry = lowered.compile().as_text().partition("ENTRY")[2]
    assert " while(" in entry
    assert "dot" not in entry


def test_remat_tapes_tables_only():
    batched = eb.batch(model, params=make_params())
    types = types_of(batched)
    cells = {
        name: taped_cell(types[name], batched.types, True, remat=True)
        for name in ("word", "step", "double")
    }
    assert [len(each.sites) for each in cells.values()] == [1, 0, 0]
    assert len(cells["step"].direct) == 2


@pytest.mark.parametrize("packing", [False, True])
def test_the_gradient_with_remat_is_that_of_the_model(packing):
    packed = "auto" if packing else "never"
    compiler = eb.Compiler(packing=packed, remat="always")
    batched = eb.batch(model, params=make_params(), compiler=compiler)
    eb.verify(batched, make_params(), SENTENCES)


def test_second_derivatives_are_refused():
    batched = eb.batch(model, params=make_params())
    plan = batched.plan(SENTENCES)
    params = make_params()
    floats = {name: each for name, each in params.items() if name != "number"}

    def loss(own):
        return batched.apply(params | own, plan).sum()

    def slope(own):
        return jax.grad(loss)(own)["w"].sum()

    fix = r"stop_gradient\(params\).*instance by instance"
    with pytest.raises(eb.PlanError, match=f"first derivatives only.*{fix}"):
        jax.grad(slope)(floats)

    def first_order(own):  # MAML, with the fix from the message
        grads = jax.grad(loss)(jax.lax.stop_gradient(own))
        return loss(jax.tree.map(lambda old, grad: old - 0.1 * grad, own, grads))

    moved = jax.tree.map(
        lambda old, grad: old - 0.1 * grad, floats, jax.grad(loss)(floats)
    )
    found, expected = jax.grad(first_order)(floats), jax.grad(loss)(moved)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), found, expected)
    with pytest.raises(
        eb.PlanError, match=r"reverse mode only, .*jax\.hessian; use one"
    ):
        jax.jit(jax.hessian(loss))(floats)
    with pytest.raises(eb.PlanError, match="reverse mode only"):
        jax.jvp(loss, (floats,), (floats,))


@eb.cell
def project(params, features):
    return jnp.tanh(params["projection"] @ features)


def projected(params, features):
    return double(params, project(params, features))


@pytest.mark.parametrize("length", [127, 128])
def test_long_products_of_inputs_are_taped_on_one_core(monkeypatch, length):
    """Cells without operands recompute shorter products; on more cores, all of them."""
    rng = np.random.default_rng(length)
    features = list(rng.normal(size=(3, length)).astype(np.float32))
    weight = rng.normal(size=(HIDDEN, length)).astype(np.float32)
    params = make_params() | {"projection": jnp.asarray(weight)}
    batched = eb.batch(projected, params=params, compiler=eb.Compiler(hoisting="never"))
    batched.plan(features)
    [node_type] = [t for t in batched.types.types if not t.operand_kinds]

    def taped(target, **options):
        cell = taped_cell(node_type, batched.types, True, target=target, **options)
        return len(cell.sites)

    assert taped(CPU) == taped(GPU) == 0
    assert taped(CPU_OF_ONE_CORE) == int(length == 128)
    assert taped(CPU_OF_ONE_CORE, remat=True) == 0
    monkeypatch.setattr("edbatch.target._cpu", lambda: CPU_OF_ONE_CORE)
    eb.verify(batched, params, features)
