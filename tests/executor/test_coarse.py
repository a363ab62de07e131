"""Tests that coarse programs run streams of fine ones, with equal results.

`models/test_batched.py` tests the ready workloads in both tiers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from message_passing import NUM_TYPES, message_passing, sample_molecules
from message_passing import make_params as make_network
from noisy_programs import NOISY, sample_noisy
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
from edbatch.compiler import OFF
from edbatch.executor.arenas import new_arenas
from edbatch.executor.coarse import type_loops
from edbatch.executor.loops import Loops
from edbatch.executor.program import CompileOptions
from edbatch.stream.loop import Loop, order_loops

pytestmark = pytest.mark.usefixtures("quick_compiles")

# Parts of two rows; most chunks have several, some with only padding.
SIZES = eb.Sizes(widths=(2, 6, 16))


@pytest.fixture
def coarse(monkeypatch):
    """Makes all plans for coarse programs."""
    made = functools.partial(CompileOptions, tier="coarse")
    monkeypatch.setattr("edbatch.plan.plan.CompileOptions", made)


def assert_coarse(batched, minibatch):
    program = batched.plan(minibatch).shape.program
    assert program.options.tier == "coarse"
    assert any(last - first > 1 for first, last, _ in type_loops(program.loops))


@pytest.mark.parametrize("seed", range(20))
def test_a_type_has_one_loop_of_parts(seed):
    rng = np.random.default_rng(seed)
    loops = order_loops(
        Loop(
            int(rng.integers(3)),
            int(rng.choice([3, 6, 8, 12])),
            tuple(np.flatnonzero(rng.random(3) < 0.7).tolist()),
        )
        for _ in range(8)
    )
    groups = type_loops(loops)
    assert [p for first, last, _ in groups for p in range(first, last)] == [*range(8)][
        : len(loops)
    ]
    for first, last, common in groups:
        own = loops[first:last]
        assert {common.type_id} == {each.type_id for each in own}
        assert {each.width % common.width for each in own} == {0}
        assert all({*common.sliced} <= {*each.sliced} for each in own)
    assert len({common.type_id for *_, common in groups}) == len(groups)


ALIGNED = eb.Planner(layout="aligned")
OPTIONS = {
    "default": {},
    "as it is written": {"compiler": OFF},
    "aligned, hoisted": {
        "planner": ALIGNED,
        "compiler": eb.Compiler(hoisting="always"),
    },
    "gathered, remat": {"compiler": eb.Compiler(slices="never", remat="always")},
    "aligned": {"planner": ALIGNED},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_trees(options, coarse):
    batched = eb.batch(encode, params=make_tree_params(), sizes=SIZES, **options)
    trees = sample_trees(3, 9)
    assert_coarse(batched, trees)
    eb.verify(batched, make_tree_params(), trees)


@pytest.mark.parametrize("widths", [(1, 3, 8), (4, 8)])
def test_random_programs(widths, coarse):
    """Includes several outputs, padded lists, integers and cells without operands."""
    rng = np.random.default_rng(4)
    minibatch = [sample_program(rng, 25) for _ in range(5)]
    batched = eb.batch(interpret, params=make_params(), sizes=eb.Sizes(widths=widths))
    eb.verify(batched, make_params(), minibatch)


def test_a_network_of_many_types(coarse):
    batched = eb.batch(message_passing, params=make_network(4), sizes=SIZES)
    graphs = sample_molecules(0, 12)
    plan = batched.plan(graphs)
    assert len(type_loops(plan.shape.program.loops)) == NUM_TYPES
    eb.verify(batched, make_network(4), graphs)


def test_random_numbers_are_the_same_in_both_tiers():
    def model(params, program):
        return interpret(params, program, NOISY)

    rng = np.random.default_rng(3)
    minibatch = [sample_noisy(rng, 12) for _ in range(4)]
    batched = eb.batch(model, params=make_params(2), sizes=SIZES)
    plan = batched.plan(minibatch)
    fine, coarse = (
        batched.apply(make_params(2), plan.in_tier(tier), rng=jax.random.key(5))
        for tier in ("fine", "coarse")
    )
    for one, other in zip(*map(jax.tree.leaves, (fine, coarse)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_double_precision(coarse):
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), make_tree_params())
        batched = eb.batch(encode, params=params, sizes=SIZES)
        trees = sample_trees(3, 9)
        output = batched(params, trees)
        assert {each.dtype for each in jax.tree.leaves(output)} == {np.dtype("float64")}
        expected = [encode(params, each) for each in trees]
        for one, other in zip(
            jax.tree.leaves(output),
            jax.tree.leaves(jax.tree.map(lambda *x: np.stack(x), *expected)),
            strict=True,
        ):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ("default", (4, 12)),
        ("default", (1, 3, 8)),
        ("aligned", (4, 12)),
        ("gathered, remat", (4, 12)),
    ],
)
def test_what_is_not_finite_stays_in_its_instance(options, widths, coarse):
    lengths, sizes = (3, 5, 2, 4, 1, 3, 6), eb.Sizes(widths=widths)
    batched = eb.batch(chain, params=make_poisoned(), sizes=sizes, **OPTIONS[options])
    differentiated = Differentiated(batched, jax.random.key(0))
    for at in (0, 3, 6):
        clean = sample_chains(1, lengths, at)
        before = differentiated(clean)
        for value in POISONS.values():
            assert_isolated(differentiated, before, clean, at, value)


@pytest.mark.devices
def test_two_devices(coarse):
    batched = eb.batch(encode, params=make_tree_params(), sizes=SIZES)
    sharded = batched.sharded()
    trees = sample_trees(0, 7)
    plan = sharded.plan(trees)
    assert plan.shards.shape.program.options.tier == "coarse"
    assert plan.in_tier("coarse") is plan
    assert plan.in_tier("fine").shards.shape.program.options.tier == "fine"
    eb.verify(sharded, make_tree_params(), trees)


def loops_in_a_step(plan, params):
    """Number of loops inside the loop over steps."""
    program = plan.shape.program
    arenas = jax.eval_shape(lambda: new_arenas(program))
    jaxpr = jax.make_jaxpr(Loops().run, static_argnums=0)(
        program, program.pack(params), arenas, plan.pools, plan.as_stream()
    )
    (steps,) = (each for each in jaxpr.eqns if each.primitive.name == "while")
    step = steps.params["body_jaxpr"]
    return sum(each.primitive.name == "while" for each in step.eqns)


def test_there_is_one_body_per_type():
    params = make_network(4)
    batched = eb.batch(message_passing, params=params, sizes=SIZES)
    plan = batched.plan(sample_molecules(0, 12))
    assert loops_in_a_step(plan.in_tier("coarse"), params) == NUM_TYPES
    assert len(plan.shape.program.loops) > NUM_TYPES


def test_parts_that_hold_padding_alone_are_left_out(monkeypatch):
    """A chunk of 16 rows with 3 nodes runs as two parts of 2."""
    rows = []

    @eb.cell
    def double(x):
        jax.debug.callback(lambda _: rows.append(1), x)
        return x * 2

    batched = eb.batch(
        lambda params, x: double(x), params={}, sizes=eb.Sizes(widths=(16,))
    )
    plan = batched.plan([np.float32(k) for k in range(3)])
    assert [each.width for each in plan.shape.program.loops] == [16]
    monkeypatch.setattr("edbatch.executor.coarse.math.gcd", lambda *widths: 2)
    found = batched.apply({}, plan.in_tier("coarse"))
    jax.effects_barrier()
    assert np.asarray(found)[:3].tolist() == [0, 2, 4]
    assert len(rows) == 4
