"""Variables that a function of `eb.jit` reads keep their values of the first call."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiered_runs import COMPARING, PARAMS, records_of, run_until_fine, tier_of
from trees import assert_equal, sample_trees

import edbatch as eb
from edbatch.compilation.settings import REFINE_AFTER
from edbatch.compilation.tier import run_numbered
from edbatch.errors import CompilationError

pytestmark = pytest.mark.usefixtures("quick_compiles")

CHANGED = "reads a variable that has changed since its first call"


class Read:
    """The variables that the functions below read."""

    scale = 2.0
    add = False
    array = np.ones((1, 4), np.float32)
    rate = np.ones((), np.float32)


@pytest.fixture
def read():
    return Read()


def change_number(read):
    read.scale = 3.0


def change_branch(read):
    read.add = True


def change_array(read):
    read.array = read.array + 1


def change_array_in_place(read):
    read.array[0, 1] = 5


def change_rate_in_place(read):
    read.rate[...] = 5


CHANGES = [
    change_number,
    change_branch,
    change_array,
    change_array_in_place,
    change_rate_in_place,
]


def loss_of(batched, read):
    """A loss that reads all variables of `read`."""

    def loss(params, plan):
        hidden, _ = batched.apply(params, plan)
        total = read.scale * ((hidden * read.array).sum() * read.rate)
        return total + 1 if read.add else total

    return loss


def slope_of(batched, read):
    return jax.grad(loss_of(batched, read))


def inner_of(batched, read):
    """The loss inside a jitted function, whose trace JAX caches."""
    inner = jax.jit(loss_of(batched, read))
    return lambda params, plan: inner(params, plan) + 1


MAKERS = [loss_of, slope_of, inner_of]


def runs_until_asked(function, *args):
    return [function(*args) for _ in range(REFINE_AFTER - 1)]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("maker", MAKERS)
def test_the_first_values_stay(auto, batched, plan, read, maker, change, caplog):
    read.array, read.rate = np.ones((1, 4), np.float32), np.ones((), np.float32)
    function = eb.jit(maker(batched, read))
    before = runs_until_asked(function, PARAMS, plan)
    change(read)
    before.append(function(PARAMS, plan))  # requests the fine program
    assert eb.wait_for_compilations(120)
    for _ in range(3):
        assert_equal(function(PARAMS, plan), before[0])
    assert_equal(before[-1], before[0])
    *_, last = records_of(function.__qualname__)
    assert (last.tier, last.state) == ("fine", "failed")
    [message] = [each.getMessage() for each in caplog.records]
    assert CHANGED in message and "pass what changes as an argument" in message
    with pytest.raises(CompilationError, match=CHANGED):
        function.warm_up(PARAMS, plan)


@pytest.mark.parametrize("maker", MAKERS)
def test_an_equal_array_is_no_change(auto, batched, plan, read, maker):
    function = eb.jit(maker(batched, read))
    before = runs_until_asked(function, PARAMS, plan)
    read.array = jnp.array(read.array) if maker is loss_of else read.array.copy()
    function(PARAMS, plan)
    assert eb.wait_for_compilations(120)
    assert_equal(function(PARAMS, plan), before[0])
    assert records_of(function.__qualname__)[-1].state == "finished"


def test_another_function_of_the_same_one_has_its_own_values(
    auto, batched, plan, read, caplog
):
    loss = loss_of(batched, read)
    run_until_fine(eb.jit(loss), PARAMS, plan)
    change_number(read)
    function = eb.jit(loss)
    coarse, fine = run_until_fine(function, PARAMS, plan)
    assert_equal(coarse[0], jax.jit(loss_of(batched, read))(PARAMS, plan))
    assert_equal(fine, coarse[0])
    assert function.compilations()[-1].tier == "fine" and not caplog.records


@pytest.mark.parametrize("use", ["lower", "trace", "eval_shape", "grad"])
def test_what_was_traced_before_the_first_call_is_not_taken(
    auto, batched, plan, read, use
):
    loss = loss_of(batched, read)
    function = eb.jit(loss)
    if use == "grad":
        jax.grad(function)(PARAMS, plan)
    else:
        getattr(function, use)(PARAMS, plan)
    change_number(read)
    coarse, fine = run_until_fine(function, PARAMS, plan)
    assert_equal(coarse[0], jax.jit(loss_of(batched, read))(PARAMS, plan))
    assert_equal(fine, coarse[0])


@pytest.mark.parametrize("jit", [jax.jit, eb.jit])
def test_what_an_inner_function_was_traced_to_is_not_taken(
    auto, batched, plan, read, jit
):
    inner = jit(loss_of(batched, read))
    inner(PARAMS, plan.in_tier("fine"))
    change_number(read)
    function = eb.jit(lambda params, plan: inner(params, plan) + 1)
    coarse, fine = run_until_fine(function, PARAMS, plan)
    expected = jax.jit(loss_of(batched, read))(PARAMS, plan) + 1
    assert_equal(coarse[0], expected)
    assert_equal(fine, expected)


def test_a_plan_that_is_returned_is_the_one_that_was_given(auto, batched, plan, read):
    def step(params, plan):
        return loss_of(batched, read)(params, plan), plan

    function = eb.jit(step, tiers="fine")
    value, returned = function(PARAMS, plan)
    assert returned.shape == plan.shape
    again, _ = function(PARAMS, returned)
    assert_equal(value, again)
    assert len(function.compilations()) == 1


def test_traces_under_settings_leave_fresh_ones_fresh(plan):
    """Plans keep a number of `with_fresh_trace`; others only get one in the trace."""
    found = run_numbered(lambda one, other: ((one.trace, other.trace), one, other), 7)
    seen, one, other = found(plan, plan.in_trace(3))
    assert seen == (7, 3) and (one.trace, other.trace) == (0, 3)
    assert one.shape == plan.shape


def test_values_that_come_back(auto, batched, plan, read):
    """Nothing from the refused background compilation is used later."""
    function = eb.jit(loss_of(batched, read))
    before = runs_until_asked(function, PARAMS, plan)
    change_number(read)
    function(PARAMS, plan)
    assert eb.wait_for_compilations(120)
    read.scale = Read.scale
    function.warm_up(PARAMS, plan)
    assert function.compilations()[-1].state == "finished"
    assert_equal(function(PARAMS, plan), before[0])


def test_a_setting_that_changes_later(auto, batched, plan, read):
    """Coarse programs that were compiled ahead are compared, too."""
    function = eb.jit(loss_of(batched, read))
    with eb.use_tiers("coarse"):
        function.warm_up(PARAMS, plan)
        before = [function(PARAMS, plan) for _ in range(REFINE_AFTER)]
    change_number(read)
    function(PARAMS, plan)
    assert eb.wait_for_compilations(120)
    assert_equal(function(PARAMS, plan), before[0])
    assert function.compilations()[-1].state == "failed"


def test_what_is_compiled_ahead_has_the_values_of_then(auto, batched, plan, read):
    function = eb.jit(loss_of(batched, read))
    expected = jax.jit(loss_of(batched, read))(PARAMS, plan)
    function.warm_up(PARAMS, plan)
    change_number(read)
    assert_equal(function(PARAMS, plan), expected)


@pytest.mark.parametrize("changed", [False, True])
def test_a_call_while_a_program_is_compiled_ahead(
    auto, batched, plan, read, changed, caplog
):
    """The program that is traced first finishes compiling last."""
    traced, gate = threading.Event(), threading.Event()
    loss = loss_of(batched, read)

    def function(params, plan):
        value = loss(params, plan)
        if tier_of(plan) == "fine" and not COMPARING.on:
            traced.set()
            assert gate.wait(60)
        return value

    function = eb.jit(function)
    handle = function.warm_up_in_background(PARAMS, plan)
    assert traced.wait(60)
    if changed:
        change_number(read)
    coarse = function(PARAMS, plan)
    gate.set()
    assert eb.wait_for_compilations(120)
    assert_equal(function(PARAMS, plan), coarse)
    if changed:
        with pytest.raises(CompilationError, match=CHANGED):
            handle.wait()
        assert len(caplog.records) == 1
    else:
        handle.wait()
        assert not caplog.records


def steps(batched, read):
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    state = optimizer.init(PARAMS)

    def step(params, plan):
        value, slope = jax.value_and_grad(loss_of(batched, read))(params, plan)
        updates, _ = optimizer.update(slope, state, params)
        return optax.apply_updates(params, updates), value

    return step


def rules(batched, read):
    """A function of custom rules, loops, branches, keys, callbacks and NaN."""

    @jax.custom_vjp
    def twice(x):
        return 2 * x

    twice.defvjp(lambda x: (2 * x, x), lambda x, g: (2 * g,))
    key = jax.random.key(3)

    def function(params, plan):
        hidden, _ = batched.apply(params, plan)
        x = jax.nn.relu(twice(hidden)) + jax.random.normal(key, hidden.shape)
        x = jax.lax.cond(x.sum() > 0, lambda x: x, lambda x: -x, x)
        x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, None, length=3)
        x = jax.checkpoint(jnp.tanh)(jax.vmap(jnp.square)(x))
        x = jnp.linalg.solve(jnp.eye(x.shape[1]) * 2, x.T).T
        x = jax.lax.while_loop(lambda x: x.sum() > 1e3, lambda x: x / 2, x)
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        x = jax.pure_callback(lambda x: np.asarray(x) + 1, shape, x)
        jax.debug.callback(lambda x: None, x)
        return jnp.where(jnp.isnan(x), jnp.nan, x).sum()

    return function


def slopes_of_rules(batched, read):
    def function(params, plan):
        hidden, _ = batched.apply(params, plan)
        return jnp.linalg.norm(jax.nn.gelu(jax.nn.relu(hidden))) + jnp.inf * 0

    return jax.value_and_grad(function)


@pytest.mark.parametrize("maker", [*MAKERS, steps, rules, slopes_of_rules])
def test_what_stays_the_same_is_refined(auto, batched, plan, read, maker, caplog):
    function = eb.jit(maker(batched, read))
    coarse, fine = run_until_fine(function, PARAMS, plan)
    *_, last = records_of(function.__qualname__)
    assert (last.tier, last.state, last.runs) == ("fine", "finished", 1)
    assert_equal(coarse[0], fine)
    assert not caplog.records


@pytest.mark.devices
def test_of_two_devices(auto, batched, plan, read):
    sharded = batched.sharded()
    plan = sharded.plan(sample_trees(0, 7))
    function = eb.jit(loss_of(sharded, read))
    before = runs_until_asked(function, PARAMS, plan)
    change_number(read)
    function(PARAMS, plan)
    assert eb.wait_for_compilations(120)
    assert_equal(function(PARAMS, plan), before[0])


def test_functions_without_plans_and_of_one_tier_are_traced_once(plan, batched, read):
    traced = []

    def function(params, plan):
        traced.append(1)
        return loss_of(batched, read)(params, plan)

    compiled = eb.jit(function, tiers="fine")
    for _ in range(5):
        compiled(PARAMS, plan)
    assert len(traced) == 1
