"""Programs are compiled with those options of their plans that this XLA supports."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.compilation.tier import compiler_options, known_options
from edbatch.target import CPU, CPU_OF_ONE_CORE, GPU

SMALL = known_options(CPU.small_product_options)


def layer(length, rows=3):
    """A model of a product with a square weight, and its inputs."""
    params = np.random.default_rng(0).standard_normal((length, length), "f4")
    cell = eb.cell(lambda params, x: jnp.tanh(x @ params), name="layer")
    batched = eb.batch(lambda params, x: cell(params, cell(params, x)), params=params)
    return params, batched, [np.full(length, k / (3 * rows), "f4") for k in range(rows)]


@pytest.fixture
def made(monkeypatch):
    """The compiler options that are passed to `jax.jit`."""
    found, jit = [], jax.jit

    def watched(function, **options):
        found.append(options.get("compiler_options"))
        return jit(function, **options)

    monkeypatch.setattr(jax, "jit", watched)
    return found


def test_options_of_coarse_programs_reach_the_compiler(made):
    double = eb.cell(lambda params, x: 2 * x)
    batched = eb.batch(lambda params, x: double(params, x), params={})
    plan = batched.plan([1.0, 2.0])
    function = eb.jit(lambda plan: batched.apply({}, plan), tiers="coarse")
    assert np.asarray(function(plan))[:2].tolist() == [2.0, 4.0]
    assert known_options(CPU.coarse_options) in made


def test_unknown_options_are_left_out():
    double = eb.cell(lambda params, x: 2 * x)
    batched = eb.batch(lambda params, x: double(params, x), params={})
    plan = batched.plan([1.0, 2.0]).in_tier("coarse")
    more = (*CPU.coarse_options, ("xla_no_such_option", True))
    own = plan.on(replace(CPU, coarse_options=more))
    assert compiler_options([own, 3]) == known_options(CPU.coarse_options)
    assert compiler_options(plan.on(GPU)) == {}
    assert compiler_options(3) == {}


@pytest.mark.parametrize(
    ("length", "rows", "is_small"),
    [(8, 3, True), (256, 100, True), (257, 100, False), (256, 3, False)],
)
def test_small_products_have_options_of_their_own(length, rows, is_small):
    assert SMALL, "this version of XLA knows them"
    _, batched, xs = layer(length, rows)
    plan = batched.plan(xs).on(CPU)
    assert compiler_options(plan) == (SMALL if is_small else {})
    assert compiler_options(plan.in_tier("coarse")) == known_options(CPU.coarse_options)
    assert compiler_options(plan.on(GPU)) == {}
    one_core = SMALL if rows == 100 else compiler_options(plan)
    assert compiler_options(plan.on(CPU_OF_ONE_CORE)) == one_core


@pytest.mark.parametrize(("narrow", "is_small"), [(2, True), (80, False)])
def test_most_multiply_adds_have_to_be_in_wide_chunks(narrow, is_small):
    weight = np.ones((8, 8), "f4")
    wide = eb.cell(lambda weight, x: x @ weight, name="wide")
    alone = eb.cell(lambda weight, x: jnp.tanh(x @ weight), name="alone")

    def model(weight, instance):
        x, steps = instance
        x = wide(weight, x)
        for _ in range(steps):
            x = alone(weight, x)
        return x

    batched = eb.batch(model, params=weight)
    xs = [(np.ones(8, "f4"), narrow if k == 0 else 0) for k in range(400)]
    plan = batched.plan(xs)
    assert compiler_options(plan) == (SMALL if is_small else {})


def test_of_plans_that_differ_the_program_has_what_they_share():
    small, large = (layer(length)[1:] for length in (8, 300))
    plans = [batched.plan(xs) for batched, xs in (small, large)]
    assert compiler_options(plans) == {}
    assert compiler_options([plans[0], {"again": plans[0]}]) == SMALL
    coarse = [plan.in_tier("coarse") for plan in plans]
    assert compiler_options(coarse) == known_options(CPU.coarse_options)


def test_functions_of_two_sizes_are_right_and_each_is_compiled_once(made):
    def loss(params, plan, apply):
        return jnp.sum(apply(params, plan) ** 2, where=plan.instance_mask[:, None])

    step = eb.jit(jax.value_and_grad(loss), tiers="fine", static_argnames="apply")
    layers = [layer(length) for length in (8, 300)]
    for _ in range(2):
        for params, batched, arrays in layers:
            xs = [jnp.asarray(each) for each in arrays]

            def unbatched(params, xs=xs):
                ends = [jnp.tanh(jnp.tanh(x @ params) @ params) for x in xs]
                return sum((each**2).sum() for each in ends)

            found = step(params, batched.plan(xs), apply=batched.apply)
            expected = jax.value_and_grad(unbatched)(params)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert made.count(SMALL) == 1 and len(step.compilations()) == 2


def test_the_options_are_those_of_the_program_that_runs():
    params, batched, xs = layer(8)
    step = eb.jit(batched.apply, tiers="fine")
    plan = batched.plan(xs)
    text = step.lower(params, plan).compile().as_text()
    plain = jax.jit(batched.apply).lower(params, plan).compile().as_text()
    assert "ynn_fusion" not in text and "dot" in text
    assert "ynn_fusion" in plain, "else the option is in the way"


def test_inside_a_trace_options_are_left_out():
    params, batched, xs = layer(8)
    step, plan = eb.jit(batched.apply, tiers="fine"), batched.plan(xs)
    found = jax.jit(lambda params: step(params, plan) * 2)(params)
    np.testing.assert_allclose(found, 2 * step(params, plan), rtol=1e-5, atol=1e-6)
