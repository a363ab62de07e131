"""Tests that programs with one switch per chunk equal programs of loops."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from poisoned import (
    POISONS,
    Differentiated,
    assert_isolated,
    chain,
    sample_chains,
)
from poisoned import make_params as make_poisoned
from programs import interpret, make_params, sample_program
from trees import encode, sample_trees
from trees import make_params as make_tree_params

import edbatch as eb
from edbatch.cell.deferred_rows import DeferredRows
from edbatch.cell.jaxpr import body_of, inner_bodies, name_of
from edbatch.cell.rows import add_all, add_rows, mark_rows, slice_rows, write_rows
from edbatch.executor.late_writes import LateWrites, Written
from edbatch.models import get_workload
from edbatch.target import CPU

pytestmark = pytest.mark.usefixtures("quick_compiles")

SWITCH = replace(CPU, control="switch")


@pytest.fixture
def switched(monkeypatch):
    """Makes all plans for programs with one switch per chunk."""
    monkeypatch.setattr("edbatch.batched.choose_target", lambda *_, **__: SWITCH)


def primitives(function, *arguments):
    """Counts the equations of a function by primitive, inner functions included."""
    counts: dict[str, int] = {}

    def visit(body):
        for eqn in body.equations:
            counts[name_of(eqn)] = counts.get(name_of(eqn), 0) + 1
            for inner in inner_bodies(eqn):
                visit(inner)

    visit(body_of(jax.make_jaxpr(function)(*arguments)))
    return counts


def total(output):
    return sum(jnp.sin(each).sum() for each in jax.tree.leaves(output))


# ---- the same results ----


@pytest.mark.parametrize("seed", range(3))
def test_random_programs(switched, seed):
    rng = np.random.default_rng(seed)
    minibatch = [sample_program(rng, 15) for _ in range(4)]
    batched = eb.batch(interpret, sizes=eb.Sizes(widths=(3, 8)), params=make_params())
    plan = batched.plan(minibatch)
    assert plan.shape.program.options.target is SWITCH
    assert plan.shape.program.chunks >= plan.trips.sum() > 0
    found = eb.verify(batched, make_params(seed), minibatch)
    assert found.max_gradient_error is not None


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("lattice-lstm", "known"),
        ("bilstm-tagger", "known"),
        # The loop over chunks is a different one; its body does not depend on that.
        ("tree-lstm", "unknown"),
    ],
)
def test_workloads(name, chunks):
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(0), 8)
    # One width here; the random programs have two.
    batched = eb.batch(workload.model, sizes=eb.Sizes(widths=(8,)), params=params)
    plan = batched.plan(workload.sample(np.random.default_rng(1), 3))
    other = plan.on(SWITCH)
    assert other.shape.program.chunks == 0
    if chunks == "known":
        program = replace(other.shape.program, chunks=int(plan.trips.sum()) + 3)
        other = replace(other, shape=replace(other.shape, program=program))

    def value_and_gradient(params, plan):
        return jax.value_and_grad(lambda own: total(batched.apply(own, plan)))(params)

    expected = jax.jit(value_and_gradient)(params, plan)
    found = jax.jit(value_and_gradient)(params, other)
    for one, two in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@eb.cell
def layer(own, state):
    return jnp.tanh(state @ own["weight"] + own["bias"])


def stack(params, instance):
    state, numbers = instance
    for number in numbers:
        state = layer(params[number], state)
    return state


@pytest.mark.parametrize("remat", ["auto", "always"])
def test_types_that_share_loops(switched, remat):
    rng = np.random.default_rng(0)

    def array(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    params = [{"weight": array(4, 4), "bias": array(4)} for _ in range(6)]
    instances = [
        (rng.normal(size=4).astype(np.float32), rng.integers(0, 6, k).tolist())
        for k in (7, 3, 9, 6)
    ]
    batched = eb.batch(stack, params=params, compiler=eb.Compiler(remat=remat))
    program = batched.plan(instances).shape.program
    families = {program.types.types[each.type_id].family for each in program.loops}
    assert families - {None}
    eb.verify(batched, params, instances)


def test_padding_contributes_nothing_and_instances_are_apart(switched):
    sizes = eb.Sizes(widths=(2, 6))
    batched = eb.batch(chain, params=make_poisoned(), sizes=sizes)
    differentiated = Differentiated(batched, jax.random.key(0))
    clean = sample_chains(1, (3, 5, 2, 4), 1)
    before = differentiated(clean)
    for value in POISONS.values():
        assert_isolated(differentiated, before, clean, 1, value)


# ---- the compiled program ----


@pytest.mark.parametrize("gradient", [False, True])
def test_a_program_is_one_loop_around_one_switch(gradient):
    params = make_tree_params()
    batched = eb.batch(encode, params=params)
    # Barriers, as on GPUs; fences made of loops would be counted.
    target = replace(SWITCH, fence="barrier", fenced_slice=None)
    plan = batched.plan(sample_trees(0, 8)).on(target)
    program = replace(plan.shape.program, chunks=64)
    plan = replace(plan, shape=replace(plan.shape, program=program))

    def forward(params):
        return total(batched.apply(params, plan))

    counts = primitives(jax.grad(forward) if gradient else forward, params)
    passes = 1 + gradient
    assert counts["cond"] == passes
    # A loop whose iteration count is known at compile time becomes a scan.
    assert counts["scan"] >= passes and "while" not in counts


def test_coarse_programs_have_loops_as_ever(switched):
    params = make_tree_params()
    batched = eb.batch(encode, params=params)
    plan = batched.plan(sample_trees(0, 8)).in_tier("coarse")
    assert "cond" not in primitives(lambda p: batched.apply(p, plan), params)


# ---- writes ----


def applied(arrays, *branches, order):
    """Applies the writes of some branches, one after the other."""
    views = [DeferredRows(each) for each in arrays]
    form = LateWrites.of(
        [
            [
                Written.of(array, rows.writes)
                for array, rows in zip(arrays, branch(*views), strict=True)
            ]
            for branch in branches
        ]
    )
    groups = form.join(arrays)
    for k in order:
        groups = form.write(groups, form.pack(branches[k](*form.views(groups))))
    return form, form.divide(groups)


def test_writes_are_those_of_arrays():
    rng = np.random.default_rng(0)
    arrays = [
        jnp.asarray(rng.normal(size=shape), jnp.float32)
        for shape in ((9, 2), (7, 2), (5, 2), (4, 3), (6,))
    ]
    marks = jnp.zeros(6, jnp.bool)
    first = jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)
    second = jnp.asarray(rng.normal(size=(3, 2)), jnp.float32)
    live = jnp.array([True, False, True])

    def one(a, b, c, whole, flat, marks):
        a = write_rows(a, jnp.int32(5), first)  # ends at the end of the array
        c = add_rows(c, jnp.array([1, 1, 4]), second)
        return a, b, c, add_all(whole, whole_more), flat, marks

    def two(a, b, c, whole, flat, marks):
        a = write_rows(a, jnp.int32(1), second)
        b = write_rows(b, jnp.int32(4), second)
        c = add_rows(c, jnp.int32(1), first)
        marks = mark_rows(marks, jnp.array([0, 5, 3]), live)
        return a, b, c, whole, flat, marks

    whole_more = jnp.ones((4, 3))
    arrays.append(marks)
    for order in ((0,), (1,), (0, 1, 1, 0)):
        expected = arrays
        for k in order:
            expected = (one, two)[k](*expected)
        form, found = applied(arrays, one, two, order=order)
        for own, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-6)
    # The first two are only set and have rows of one shape, so they share an array.
    assert [each.members for each in form.groups] == [(0, 1), (2,), (3,), (5,)]
    assert form.kept == (4,)


def test_nothing_is_read_after_it_was_written():
    rows = write_rows(DeferredRows(jnp.zeros((4, 2))), jnp.int32(0), jnp.ones((1, 2)))
    with pytest.raises(AssertionError, match="read before they are written"):
        slice_rows(rows, jnp.int32(0), 1)


def test_an_array_is_written_in_one_way():
    array = jnp.zeros((4, 2))
    rows = write_rows(DeferredRows(array), jnp.int32(0), jnp.ones((1, 2)))
    rows = add_rows(rows, jnp.int32(0), jnp.ones((1, 2)))
    with pytest.raises(AssertionError, match="in one way"):
        functools.partial(Written.of, array)(rows.writes)


@eb.cell
def scaled(params, x):
    return params["scale"] * x, x[:0], jnp.zeros((0, 3))


def test_scalar_parameters_and_results_without_elements(switched):
    def model(params, x):
        return scaled(params, scaled(params, x)[0])

    params = {"scale": jnp.float32(2)}
    instances = [np.full(2, k, np.float32) for k in range(3)]
    batched = eb.batch(model, params=params, sizes=eb.Sizes(widths=(4,)))
    outputs = batched(params, instances)
    assert [each.shape for each in outputs] == [(3, 2), (3, 0), (3, 0, 3)]
    eb.verify(batched, params, instances)
