"""A program's cells are made once for any number of types, and freed with them."""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import edbatch as eb
from edbatch.cell import backward
from edbatch.cell import program as cells

# Static numbers make any number of types.
pytestmark = pytest.mark.filterwarnings("ignore::edbatch.errors.ManyTypesWarning")


@eb.cell(static=("power",))
def shift(params, x, power):
    return x + params * power


@eb.cell
def noisy(x, rng=None):
    return x if rng is None else x + jax.random.normal(rng)


def chain(params, count):
    x = shift(params, 1.0, 0)
    for power in range(1, count):
        x = shift(params, x, power)
    return x


def program_of(count):
    compiler = eb.Compiler(packing="never", hoisting="never", slices="never")
    sizes = eb.Sizes(widths=(1,))
    batched = eb.batch(
        chain, "depth", params=jnp.float32(1), compiler=compiler, sizes=sizes
    )
    return batched.plan([count]).shape.program


class Counted:
    """Stand-in for a cell, which counts its instances."""

    made = 0

    def __init__(self, *_, **__):
        type(self).made += 1


@pytest.mark.parametrize("count", [600, 2_000])
def test_each_cell_is_made_once(count, monkeypatch):
    program = program_of(count)
    assert len(program.types) == count
    monkeypatch.setattr(cells, "PlainCell", type("Plain", (Counted,), {"made": 0}))
    monkeypatch.setattr(backward, "TapedCell", type("Taped", (Counted,), {"made": 0}))
    for _ in range(3):
        found = program.cells()
        assert len(found) == count
        assert cells.PlainCell.made == count
        assert program.cells() == found
    for _ in range(3):
        for type_id in range(count):
            program.taped_cell(type_id)
        assert backward.TapedCell.made == count
    assert cells.PlainCell.made == count


def test_hashing_a_program_again_looks_at_no_loop(monkeypatch):
    program = program_of(3)
    first = hash(program)
    monkeypatch.setattr("edbatch.stream.loop.Loop.__hash__", None, raising=False)
    assert hash(program) == first


def test_cells_are_freed_with_their_types():
    program = program_of(3)
    cell = weakref.ref(program.cells()[0])
    taped = weakref.ref(program.taped_cell(1))
    types = weakref.ref(program.types)
    assert cell() and taped()
    del program
    gc.collect()
    assert cell() is None and taped() is None and types() is None


def test_a_type_without_its_key_is_made_once_and_freed_with_it():
    batched = eb.batch(lambda params, x: noisy(x), params=jnp.float32(1))
    node_type = batched.plan([1.0]).shape.program.types.types[0]
    keyless = node_type.without_rng()
    assert node_type.without_rng() is keyless and not keyless.takes_rng
    assert keyless.without_rng() is keyless
    found = weakref.ref(keyless)
    del batched, node_type, keyless
    gc.collect()
    assert found() is None


def test_cells_depend_on_the_precision_in_force():
    @eb.cell
    def multiply(weights, x):
        return x @ weights

    batched = eb.batch(multiply)
    weights = jnp.eye(4)
    plan = batched.bind(weights).plan([jnp.ones(4)])

    def precision():
        text = jax.jit(batched.apply).lower(weights, plan).as_text()
        return "HIGHEST" in text

    with jax.default_matmul_precision("highest"):
        assert precision()
    assert not precision()
    with jax.default_matmul_precision("highest"):
        assert precision()


class Data:
    """Stand-in for a data set that a model closes over."""


def model_of(data):
    def model(params, count):
        assert isinstance(data, Data)
        return chain(params, count)

    return model


RUNS = {
    "call": lambda batched, params, plan: batched(params, [3, 1]),
    "apply": lambda batched, params, plan: batched.apply(params, plan),
    "jit": lambda batched, params, plan: jax.jit(
        lambda params, plan: batched.apply(params, plan).sum()
    )(params, plan),
    "eb.jit": lambda batched, params, plan: eb.jit(
        jax.grad(lambda params, plan: batched.apply(params, plan).sum())
    )(params, plan),
}


@pytest.mark.parametrize("run", RUNS)
def test_jax_keeps_no_model(run):
    """JAX's caches keep static arguments, and a model may hold a whole data set."""

    def use():
        data = Data()
        batched = eb.batch(model_of(data), params=jnp.float32(1))
        plan = batched.plan([3, 1])
        RUNS[run](batched, jnp.float32(1), plan)
        return weakref.ref(data), plan

    data, plan = use()
    gc.collect()
    assert data() is None
    # A plan that outlives its model belongs to no other model, even of the same name.
    other = eb.batch(model_of(Data()))
    with pytest.raises(eb.PlanError, match="was made by another model"):
        other.apply(jnp.float32(1), plan)


def test_a_model_of_a_class_with_slots_is_kept():
    class Slots:
        __slots__ = ()
        __name__ = "slots"

        def __call__(self, params, count):
            return chain(params, count)

    batched = eb.batch(Slots(), params=jnp.float32(1))
    plan = batched.plan([3])
    assert batched.apply(jnp.float32(1), plan) == batched(jnp.float32(1), [3])
