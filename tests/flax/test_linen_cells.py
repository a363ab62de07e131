"""Linen modules as cells: batched equals unbatched, and errors for bad input."""

import subprocess
import sys

import flax_trees
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax_trees import KEY, SEQUENCES, SIZES, TREES, LinenTree, tree_model, vectors

import edbatch as eb
import edbatch.flax
from edbatch.cell import pack_type

pytestmark = pytest.mark.usefixtures("quick_compiles")


def dense(features=3, **options):
    """A dense layer for vectors of size 4: the cell, its variables, and a model."""
    module = nn.Dense(features)
    cell = eb.flax.cell(module, **options)
    params = module.init(KEY, jnp.zeros(4))
    return cell, params, lambda params, x: cell(params, x)


@pytest.mark.parametrize(
    ("name", "products"), [("OptimizedLSTMCell", 1), ("LSTMCell", 1), ("GRUCell", 2)]
)
def test_recurrent_cells_over_sequences(name, products):
    module, head = getattr(nn, name)(4), nn.Dense(2)
    step, out = eb.flax.cell(module), eb.flax.cell(head)
    zero = np.zeros(4, np.float32)
    start = zero if name == "GRUCell" else (zero, zero)

    def model(params, sequence):
        carry = start
        for x in sequence:
            carry, y = step(params["step"], carry, x)
        return out(params["head"], y)

    params = {
        "step": module.init(KEY, start, SEQUENCES[0][0]),
        "head": head.init(KEY, zero),
    }
    batched = eb.batch(model, sizes=SIZES)
    found = eb.verify(batched, params, SEQUENCES)
    assert found.max_gradient_error is not None
    assert {str(each.key) for each in batched.types.types} == {
        f"{name}@step/0",
        f"{name}@step/{len(jax.tree.leaves(start))}",
        "Dense@head/1",
    }
    packed = [pack_type(each, batched.types) for each in batched.types.types]
    assert sorted(each.after.num_products for each in packed)[-1] == products
    carry = start
    for x in SEQUENCES[0]:
        carry, y = module.apply(params["step"], carry, x)
    np.testing.assert_allclose(
        batched(params, SEQUENCES)[0], head.apply(params["head"], y), rtol=1e-5
    )


def tree_cells():
    module = LinenTree()
    return [eb.flax.cell(module, name, rngs="dropout") for name in ("leaf", "compose")]


def test_methods_of_one_module_with_dropout():
    params = LinenTree().init(KEY, np.int32(0))
    encode = tree_model(*tree_cells())
    batched = eb.batch(encode, sizes=SIZES)
    eb.verify(batched, params, TREES, rng=KEY)
    eb.verify(batched, params, TREES)
    plan = batched.plan(TREES)
    results = [batched.apply(params, plan, rng=rng)[0] for rng in (None, KEY)]
    assert not np.isclose(*results).all()
    assert [each.key.cell for each in batched.types.types] == [
        "LinenTree.leaf",
        "LinenTree.compose",
    ]


def test_a_flag_that_is_passed_is_not_filled_in():
    params = LinenTree().init(KEY, np.int32(0))
    leaf, _ = tree_cells()

    def model(params, word):
        return leaf(params, word, True), leaf(params, word, deterministic=False)

    batched = eb.batch(model, sizes=SIZES)
    (quiet, _), (noisy, _) = batched(params, [1, 1], rng=KEY)
    np.testing.assert_allclose(quiet[0], quiet[1], rtol=1e-6)
    assert not np.allclose(noisy[0], noisy[1])
    eb.verify(batched, params, [1, 1], gradients=False, rng=KEY)


def test_several_streams_draw_different_numbers():
    class Noise(nn.Module):
        @nn.compact
        def __call__(self, x):
            return [jax.random.normal(self.make_rng(each)) + x for each in ("a", "b")]

    cell = eb.flax.cell(Noise(), rngs=("a", "b"))
    batched = eb.batch(lambda params, x: tuple(cell(params, x)))
    one, other = batched({}, [0.0, 0.0], rng=KEY)
    assert len(np.unique(np.concatenate([one, other]))) == 4


def test_options_are_those_of_cells():
    cell, params, model = dense(name="projection")
    assert cell.name == "projection"
    batched = eb.batch(model, sizes=SIZES, params=params)
    assert str(batched.record(vectors()[0]).types.types[0].key) == "projection/0"


def test_lists_may_be_padded():
    class ChildSum(nn.Module):
        @nn.compact
        def __call__(self, children, mask):
            return nn.Dense(4)(jnp.where(mask[:, None], children, 0).sum(0))

    module = ChildSum()
    cell = eb.flax.cell(module, padded=("children",))
    params = module.init(KEY, jnp.zeros((1, 4)), jnp.ones(1, bool))
    batched = eb.batch(lambda params, xs: cell(params, [cell(params, list(xs))]))
    eb.verify(batched, params, [vectors(3), vectors(4)], gradients=False)
    assert [str(each.key) for each in batched.types.types] == [
        "ChildSum/0",
        "ChildSum/1",
    ]


def test_state_that_is_no_parameter():
    module = nn.BatchNorm(use_running_average=False)
    params = module.init(KEY, jnp.zeros((1, 4)))
    cell = eb.flax.cell(module)
    with pytest.raises(
        eb.CellError, match=r"BatchNorm writes to state that is no para"
    ):
        eb.batch(lambda params, x: cell(params, x))(params, vectors())


def test_state_that_is_only_read():
    module = nn.BatchNorm(use_running_average=True)
    params = module.init(KEY, jnp.zeros(4))
    cell = eb.flax.cell(module)
    eb.verify(eb.batch(lambda params, x: cell(params, x)), params, vectors())


def test_a_stream_that_is_not_named():
    class Noise(nn.Module):
        @nn.compact
        def __call__(self, x):
            return x + jax.random.normal(self.make_rng("noise"))

    cell = eb.flax.cell(Noise())
    with pytest.raises(
        eb.CellError, match=r"from a stream that the cell does not name"
    ):
        eb.batch(lambda params, x: cell(params, x))({}, vectors(), rng=KEY)


def test_a_module_that_needs_a_key_but_gets_none():
    # The module's own `deterministic=False` is not overridden.
    cell = eb.flax.cell(nn.Dropout(0.5, deterministic=False), rngs=("dropout",))
    batched = eb.batch(lambda params, x: cell(params, x))
    assert batched({}, vectors(), rng=KEY).shape == (2, 4)
    with pytest.raises(eb.CellError, match="Dropout draws random numbers but has no"):
        batched({}, vectors())


@pytest.mark.parametrize("wrong", [lambda p: p["params"], lambda p: {}, lambda p: 1.0])
def test_parameters_that_are_no_variables(wrong):
    _, params, model = dense()
    with pytest.raises(eb.CellError, match=r"Dense takes the variables that its init"):
        eb.batch(model)(wrong(params), vectors())


def test_what_is_no_module():
    with pytest.raises(eb.CellError, match=r"received Dense, a class; make a module"):
        eb.flax.cell(nn.Dense)
    with pytest.raises(eb.CellError, match=r"received dense; mark a function with"):
        eb.flax.cell(dense)


def test_a_method_that_does_not_exist():
    with pytest.raises(eb.CellError, match=r"LinenTree has no method 'composed'; did"):
        eb.flax.cell(LinenTree(), "composed")


def test_a_static_argument_that_does_not_exist():
    with pytest.raises(eb.CellError, match="cell 'Dense' has no argument 'train'"):
        dense(static=("train",))


def test_edbatch_does_not_import_it():
    code = "import sys, edbatch; sys.exit('edbatch.flax' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code]).returncode == 0
    assert flax_trees.nn is nn  # edbatch.flax does not hide Flax


def test_a_flag_by_name_alone_behind_several_inputs():
    """A second input used to be taken for the flag."""

    class Sum(nn.Module):
        @nn.compact
        def __call__(self, *xs, deterministic: bool = True):
            return nn.Dropout(0.5)(sum(xs), deterministic=deterministic)

    cell = eb.flax.cell(Sum(), rngs="dropout")

    def model(params, x):
        return cell(params, x, 2 * x), cell(params, x, x, x, deterministic=True)

    batched = eb.batch(model, params={})
    xs = [np.ones(64, np.float32), np.full(64, 2, np.float32)]
    dropped, whole = batched({}, xs, rng=jax.random.key(0))
    np.testing.assert_array_equal(whole, [3 * x for x in xs])
    for own, x in zip(dropped, xs, strict=True):
        assert {*np.unique(own)} == {0.0, float(6 * x[0])}
    np.testing.assert_array_equal(batched({}, xs)[0], [3 * x for x in xs])
