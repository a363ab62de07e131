"""A cell's loop never runs on another node's values, for which it might not end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.cell.while_loops import may_not_end
from edbatch.executor.arenas import new_arenas
from edbatch.executor.choice import executor_of
from edbatch.gradient.forward import run_with_tapes

PATIENCE = 1000  # steps instead of forever; the model's values take at most 3


@eb.cell
def start(params, x):
    return params * x


@eb.cell
def other_start(params, x):
    return params + x


def steps_to_one(x):
    """Counts down to 1, which never ends unless x is a whole number above 0."""
    return jax.lax.while_loop(
        lambda carry: (carry[0][0] != 1) & (carry[1] < PATIENCE),
        lambda carry: (carry[0] - 1, carry[1] + 1),
        (x, jnp.zeros_like(x[0])),
    )[1]


@eb.cell
def count(params, x):
    return params * steps_to_one(x)


@eb.cell
def join(params, x, y):
    return params * x[0] + y[0]


def model(params, instance):
    counted, *others = [start(params, np.full(2, x, np.float32)) for x in instance]
    return count(params, counted), join(params, *others)


INSTANCES = [(3, -5.0, 0.5), (4, -7.0, 2.5), (2, 0.5, -0.5)]


def make(tier="fine", model=model):
    batched = eb.batch(
        model,
        params=jnp.float32(1),
        compiler=eb.Compiler(slices="always"),
        sizes=eb.Sizes(widths=(8,)),
        planner=eb.Planner(layout="aligned"),
    )
    batched.fit(INSTANCES)
    return batched, batched.plan(INSTANCES).in_tier(tier)


def type_named(types, name):
    [found] = [each for each in types.types if each.key.cell == name]
    return found


@pytest.mark.parametrize("tier", ["fine", "coarse"])
def test_padding_of_a_slice_ends(tier):
    batched, plan = make(tier)
    program = plan.shape.program
    types = program.types
    [sliced] = [
        each.sliced
        for each in program.loops
        if each.type_id == type_named(types, "count").id
    ]
    assert sliced == (0,), "the operand is read as a slice, with the rows behind it"
    params = jnp.float32(1)
    execute = executor_of(program.options.target).run

    def run(params, plan):
        arenas, stream = new_arenas(program), plan.as_stream()
        return execute(program, program.pack(params), arenas, plan.pools, stream)

    arenas = jax.jit(run)(params, plan)
    [kind] = type_named(types, "count").output_kinds
    assert (np.abs(arenas[kind]) < PATIENCE).all(), "rows of padding ran on"
    counts, joined = jax.jit(batched.apply)(params, plan)
    assert counts.tolist() == [2, 3, 1]
    expected = [model(params, each)[1] for each in INSTANCES]
    np.testing.assert_allclose(joined, expected)


@pytest.mark.parametrize("tier", ["fine", "coarse"])
def test_no_row_of_a_slice_runs_on(tier):
    """Results of padding rows are dropped, so a callback records each row's steps."""
    seen = []

    def noted(x):
        steps = steps_to_one(x)
        jax.debug.callback(lambda each: seen.append(int(each)), steps)
        return steps

    @eb.cell
    def noting(params, x):
        return params * noted(x)

    def noting_model(params, instance):
        first, *others = [start(params, np.full(2, x, np.float32)) for x in instance]
        return noting(params, first), join(params, *others)

    batched, plan = make(tier, noting_model)
    types = plan.shape.program.types
    own = type_named(types, "noting").id
    assert [x.sliced for x in plan.shape.program.loops if x.type_id == own] == [(0,)]
    jax.block_until_ready(jax.jit(batched.apply)(jnp.float32(1), plan))
    jax.effects_barrier()
    assert set(seen) == {1, 2, 3}


@pytest.mark.parametrize("tier", ["fine", "coarse"])
def test_so_does_the_forward_pass_of_a_gradient(tier):
    _, plan = make(tier)
    program, params = plan.shape.program, jnp.float32(1)

    def run(params, plan):
        prepared = program.pack(params)
        cells = {type_id: program.taped_cell(type_id) for type_id in prepared}
        arenas, stream = new_arenas(program), plan.as_stream()
        return run_with_tapes(program, prepared, cells, arenas, plan.pools, stream)

    arenas = jax.jit(run)(params, plan).arenas
    [kind] = type_named(program.types, "count").output_kinds
    assert (np.abs(arenas[kind]) < PATIENCE).all(), "rows of padding ran on"


def halve_twice(x):
    return jax.lax.while_loop(
        lambda carry: carry[1] < 2, lambda carry: (carry[0] / 2, carry[1] + 1), (x, 0)
    )[0]


def settle(x):
    """The exit condition depends on a value from two steps earlier."""

    def body(carry):
        x, y, _ = carry
        return x - 1, x, y <= 0

    return jax.lax.while_loop(lambda carry: ~carry[2], body, (x, x, False))[0]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x + 1, False),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, y: 2 * y, x), False),
        (halve_twice, False),
        (steps_to_one, True),
        (lambda x: settle(x[0]), True),
        (lambda x: jax.lax.cond(x[0] > 0, steps_to_one, lambda x: x[0], x), True),
        (lambda x: jax.jit(steps_to_one)(x), True),
    ],
)
def test_which_cells_are_masked(function, expected):
    cell = eb.cell(lambda params, x: params * function(x), name="cell")
    batched = eb.batch(
        lambda params, x: cell(params, start(params, x)), params=jnp.float32(1)
    )
    batched.record(np.ones(2, np.float32))
    types = batched.types
    assert may_not_end(type_named(types, "cell"), types) == expected
