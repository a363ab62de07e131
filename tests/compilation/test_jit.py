"""Tests `eb.jit`: coarse at once, fine after a few runs, with equal results."""

import gc
import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiered_runs import PARAMS, loss_of, records_of, run_until_fine, tier_of
from trees import assert_equal, sample_trees

import edbatch as eb
from edbatch.compilation import memory_regions
from edbatch.compilation.settings import REFINE_AFTER
from edbatch.compilation.worker import WORKER, Worker

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_the_fine_program_is_swapped_in_after_a_few_coarse_runs(
    auto, batched, plan, compiled
):
    seen = []
    loss = loss_of(batched, seen)
    function = eb.jit(loss)
    for _ in range(REFINE_AFTER - 1):
        function(PARAMS, plan)
    assert eb.wait_for_compilations(60)
    assert seen == ["coarse"]  # fewer runs do not start the fine compilation
    assert len(compiled) == 1
    coarse = function(PARAMS, plan)
    assert eb.wait_for_compilations(60)
    assert seen == ["coarse", "fine"]
    assert compiled[1:] == ["edbatch-compile"]
    fine = function(PARAMS, plan)
    assert len(compiled) == 2, "the call that swaps finds the program compiled"
    assert seen == ["coarse", "fine"], "and traced"
    assert_equal(fine, coarse)
    assert_equal(fine, loss(PARAMS, plan))
    one, two = records_of(function.__qualname__)[-2:]
    assert (one.tier, one.background, one.runs) == ("coarse", False, REFINE_AFTER)
    assert (two.tier, two.background, two.runs) == ("fine", True, 1)
    assert one.state == two.state == "finished"


def test_programs_of_other_threads_settings_are_found(auto, batched, plan, compiled):
    function = eb.jit(loss_of(batched, []))
    with jax.default_matmul_precision("highest"):
        coarse, fine = run_until_fine(function, PARAMS, plan)
        assert_equal(coarse[0], fine)
        assert len(compiled) == 2
    function(PARAMS, plan)
    assert len(compiled) == 3


@pytest.mark.parametrize(
    "place",
    [
        lambda x: jax.device_put(x, jax.devices()[0]),
        lambda x: jax.tree.map(np.asarray, x),
        lambda x: x,
    ],
    ids=["committed", "numpy", "as it is"],
)
def test_the_swap_compiles_nothing_wherever_arrays_lie(
    auto, batched, plan, compiled, place
):
    function = eb.jit(loss_of(batched, []))
    params = place(PARAMS)
    before = len(compiled)
    coarse, fine = run_until_fine(function, params, plan)
    assert compiled[before:][-1] == "edbatch-compile"
    assert len(compiled) - before == 2
    assert_equal(coarse[0], fine)


def test_arrays_of_numpy_and_of_jax_share_programs(auto, batched, plan):
    seen = []
    function = eb.jit(loss_of(batched, seen))
    function(jax.tree.map(np.asarray, PARAMS), plan)
    function(PARAMS, jax.tree.map(jnp.asarray, plan))
    assert seen == ["coarse"]


def test_each_signature_has_its_programs(auto, batched):
    seen = []
    function = eb.jit(loss_of(batched, seen))
    small, large = (batched.plan(sample_trees(1, n, 3 * n)) for n in (1, 30))
    assert jax.tree.map(np.shape, small) != jax.tree.map(np.shape, large)
    for plan in (small, large):
        function(PARAMS, plan)
    assert seen == ["coarse", "coarse"]
    *_, last = records_of(function.__qualname__)
    assert "rows of arenas of plan changed from {" in last.reason
    assert "} to {" in last.reason


def test_fine_only(batched, plan):
    seen = []
    for function in (
        eb.jit(loss_of(batched, seen)),  # the tier that the project's tests set
        eb.jit(loss_of(batched, seen), tiers="fine"),
    ):
        for _ in range(2 * REFINE_AFTER):
            function(PARAMS, plan)
    assert seen == ["fine", "fine"]


def test_coarse_only(auto, batched, plan):
    seen = []
    function = eb.jit(loss_of(batched, seen), tiers="coarse")
    for _ in range(2 * REFINE_AFTER):
        function(PARAMS, plan)
    assert eb.wait_for_compilations(60)
    assert seen == ["coarse"]


@pytest.mark.usefixtures("watched")
def test_what_a_function_says_goes_before_the_setting(batched, plan):
    seen = []
    function = eb.jit(loss_of(batched, seen), tiers="auto")
    run_until_fine(function, PARAMS, plan)
    assert seen == ["coarse", "fine"]


def test_without_plans_there_is_one_program(auto, compiled):
    function = eb.jit(lambda x: x * 2)
    results = [function(3.0) for _ in range(2 * REFINE_AFTER)]
    assert compiled == ["MainThread"]
    assert set(map(float, results)) == {6}


def test_plans_deep_in_the_arguments(auto, batched, plan):
    seen = []
    loss = loss_of(batched, seen)
    function = eb.jit(lambda batch, *, params: loss(params, batch["in"][0][1]))
    for _ in range(REFINE_AFTER):
        coarse = function({"in": [(1, plan)]}, params=PARAMS)
    assert eb.wait_for_compilations(60)
    fine = function({"in": [(1, plan)]}, params=PARAMS)
    assert seen == ["coarse", "fine"]
    assert_equal(coarse, fine)


def test_steps_of_an_optimizer_with_donation(auto, batched):
    optimizer = optax.adam(1e-2)
    trees = sample_trees(3, 40)
    loader = eb.Loader(batched, trees, 8, shuffle=False)
    seen = []
    loss = loss_of(batched, seen)

    def step(learned, plan):
        params, state = learned
        value, slope = jax.value_and_grad(loss)(params, plan)
        updates, state = optimizer.update(slope, state)
        return (optax.apply_updates(params, updates), state), value

    def train(step, epochs=3):
        learned = jax.tree.map(jnp.array, (PARAMS, optimizer.init(PARAMS)))
        values = []
        for minibatch in loader.epochs(epochs):
            before = learned
            learned, value = step(learned, minibatch.plan)
            values.append(value)
            eb.wait_for_compilations()
        return learned, values, before

    tiered = eb.jit(step, donate_argnums=0)
    learned, values, before = train(tiered)
    assert {"coarse", "fine"} == set(seen)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    expected, others, before = train(jax.jit(step))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(before))
    np.testing.assert_allclose(values, others, rtol=1e-4)
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-4), learned, expected
    )


def test_donation_by_name(auto, batched, plan):
    function = eb.jit(
        lambda total, plan: total + batched.apply(PARAMS, plan)[0],
        donate_argnames="total",
    )
    for _ in range(REFINE_AFTER + 1):
        total = jnp.zeros((5, 4))
        function(total=total, plan=plan)
        assert total.is_deleted()
        eb.wait_for_compilations()


@pytest.mark.parametrize(
    "options", [{"static_argnames": "power"}, {"static_argnums": 2}]
)
def test_static_arguments(auto, batched, plan, options):
    seen = []

    def function(params, plan, power):
        seen.append((power, tier_of(plan)))
        return batched.apply(params, plan)[0].sum() ** power

    jitted = eb.jit(function, **options)
    for power in (1, 2):
        for _ in range(REFINE_AFTER):
            coarse = jitted(PARAMS, plan, power)
        assert eb.wait_for_compilations(60)
        fine = jitted(PARAMS, plan, power=power)
        fine = jitted(PARAMS, plan, power)
        assert_equal(fine, coarse)
        assert_equal(fine, function(PARAMS, plan, power))
    assert (1, "fine") in seen and (2, "fine") in seen


def test_inside_of_other_functions_it_is_inlined(auto, batched, plan):
    seen = []
    loss = loss_of(batched, seen)
    function = eb.jit(lambda params, plan: loss(params, plan))
    expected = loss(PARAMS, plan)
    seen.clear()
    assert_equal(jax.jit(lambda p, plan: function(p, plan))(PARAMS, plan), expected)
    slope = jax.grad(function)(PARAMS, plan)
    assert_equal(slope, jax.grad(loss)(PARAMS, plan))
    stacked = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), PARAMS)
    both = jax.vmap(function, in_axes=(0, None))(stacked, plan)
    np.testing.assert_allclose(both[0], expected, rtol=1e-5)
    assert jax.make_jaxpr(function)(PARAMS, plan).eqns[0].primitive.name in (
        "jit",
        "pjit",
    )
    assert set(seen) == {"fine"}
    assert records_of(function.__qualname__) == []


def test_inside_of_another_eb_jit_the_outer_one_decides(auto, batched, plan):
    seen = []
    inner = eb.jit(loss_of(batched, seen))
    outer = eb.jit(lambda params, plan: 2 * inner(params, plan))
    coarse, fine = run_until_fine(outer, PARAMS, plan)
    assert seen == ["coarse", "fine"]
    assert_equal(coarse[0], fine)


def test_disabled_jit(auto, batched):
    numbers = []
    function = eb.jit(lambda x: numbers.append(float(x)) or x)
    with jax.disable_jit():
        function(jnp.float32(3))
    assert numbers == [3]


def test_an_error_in_the_function_is_the_callers(auto, plan):
    def fail(plan):
        raise ValueError("no such thing")

    function = eb.jit(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such thing"):
            function(plan)
    *_, last = records_of(function.__qualname__)
    assert last.state == "failed" and "no such thing" in last.error


def test_an_error_of_the_background_is_told_and_the_coarse_program_goes_on(
    auto, batched, plan, caplog
):
    loss = loss_of(batched, [])

    def fine_fails(params, plan):
        if tier_of(plan) == "fine":
            raise ValueError("no such program")
        return loss(params, plan)

    function = eb.jit(fine_fails)
    with caplog.at_level("WARNING", logger="edbatch"):
        coarse, last = run_until_fine(function, PARAMS, plan)
        for _ in range(2 * REFINE_AFTER):
            assert_equal(function(PARAMS, plan), coarse[0])
        eb.wait_for_compilations()
    [warning] = caplog.records
    assert "no such program" in warning.message and "coarse" in warning.message
    assert_equal(last, coarse[0])
    record = records_of(function.__qualname__)[-1]
    assert record.state == "failed" and "no such program" in record.error
    assert "no such program" in str(eb.compile_report())
    assert eb.compile_report().background_failed >= 1


def test_one_thread_compiles_in_order_of_arrival(auto, batched, plan):
    order, gate = [], threading.Event()

    def make(k):
        def function(params, plan):
            if tier_of(plan) == "fine":
                order.append((k, threading.current_thread().name))
                assert gate.wait(60)
            return batched.apply(params, plan)[0] * k

        return eb.jit(function)

    functions = [make(k) for k in range(3)]
    for function in functions:
        for _ in range(REFINE_AFTER):
            function(PARAMS, plan)
    for k, function in enumerate(functions):  # no call waits for the thread
        assert_equal(function(PARAMS, plan), k * batched.apply(PARAMS, plan)[0])
    assert not eb.wait_for_compilations(0.01)
    gate.set()
    assert eb.wait_for_compilations(120)
    assert order == [(k, "edbatch-compile") for k in range(3)]


def test_many_threads_that_call_at_once_compile_once(auto, batched, plan):
    seen, results = [], []
    function = eb.jit(loss_of(batched, seen))
    start = threading.Barrier(4)

    def call():
        start.wait()
        results.append([function(PARAMS, plan) for _ in range(5)])

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert eb.wait_for_compilations(60)
    assert seen == ["coarse", "fine"]
    np.testing.assert_allclose(np.ravel(results), results[0][0], rtol=1e-5)


def test_warm_up_compiles_what_the_call_runs(auto, batched, plan, compiled):
    seen = []
    loss = loss_of(batched, seen)
    function = eb.jit(
        lambda params, plan: jax.tree.map(loss(params, plan).__add__, params),
        donate_argnums=0,
    )
    params = jax.tree.map(jnp.array, PARAMS)
    shapes = jax.eval_shape(lambda: params)
    before = len(compiled)
    function.warm_up(shapes, plan)
    function.warm_up(params, plan)
    assert seen == ["fine"] and len(compiled) == before + 1
    with eb.set_stance("fail_on_compile"):
        function(params, plan)
    assert seen == ["fine"] and len(compiled) == before + 1
    assert params["leaf"].is_deleted()


def test_warm_up_in_the_background(auto, batched, plan, compiled):
    gate = threading.Event()

    def wait(params, plan):
        if tier_of(plan) == "fine":
            assert gate.wait(60)
        return batched.apply(params, plan)

    function = eb.jit(wait)
    handle = function.warm_up_in_background(PARAMS, plan)
    assert function.warm_up_in_background(PARAMS, plan) is handle
    coarse = function(PARAMS, plan)
    assert not handle.done and not handle.wait(0.01)
    gate.set()
    assert handle.wait(60) and handle.done
    before = len(compiled)
    assert_equal(function(PARAMS, plan), coarse)
    assert len(compiled) == before


def test_a_handle_raises_what_went_wrong(auto, plan):
    def fail(plan):
        raise ValueError("no such thing")

    handle = eb.jit(fail).warm_up_in_background(plan)
    with pytest.raises(ValueError, match="no such thing"):
        handle.wait(60)


def test_a_setting_of_coarse_programs_ends_with_its_context(auto, batched, plan):
    seen = []
    function = eb.jit(loss_of(batched, seen))
    with eb.use_tiers("coarse"):
        function.warm_up(PARAMS, plan)
        function.warm_up_in_background(PARAMS, plan).wait()
        for _ in range(2 * REFINE_AFTER):
            function(PARAMS, plan)
        assert function.missing(PARAMS, plan) is None
    assert eb.wait_for_compilations(60)
    assert seen == ["coarse"]
    assert function.missing(PARAMS, plan) is not None
    run_until_fine(function, PARAMS, plan)
    assert seen == ["coarse", "fine"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exception_that_would_end_the_background_thread(error):
    def fail():
        raise error("stop")

    pending = WORKER.submit(fail)
    with pytest.raises(error, match="stop"):
        pending.wait(60)
    assert eb.wait_for_compilations(60)
    done = []
    assert WORKER.submit(lambda: done.append(1)).wait(60) and done == [1]


def test_programs_are_dropped_before_the_process_has_too_many_regions(
    batched, plan, monkeypatch, caplog
):
    seen = []
    function = eb.jit(loss_of(batched, seen))
    other = eb.jit(loss_of(batched, seen))
    first, _ = function(PARAMS, plan), other(PARAMS, plan)
    taken = iter([50_000, 10_000, *[10_000] * 9])
    monkeypatch.setattr(memory_regions, "_count_regions", lambda: next(taken))
    monkeypatch.setattr(memory_regions, "_limit", lambda: 65_530)
    with caplog.at_level("WARNING", logger="edbatch"):
        function(PARAMS, batched.plan(sample_trees(0, 6)))
    [warning] = caplog.records
    assert "50000 of the 65530" in warning.message and "pad_to=" in warning.message
    assert seen == ["fine"] * 3
    assert_equal(function(PARAMS, plan), first)
    assert_equal(other(PARAMS, plan), first)
    assert seen == ["fine"] * 5, "they were compiled again"


@pytest.mark.skipif(not memory_regions._REGIONS.exists(), reason="needs Linux")
def test_dropped_programs_leave_their_regions(batched):
    function = eb.jit(jax.grad(loss_of(batched, [])))
    plans = [batched.plan(sample_trees(0, count)) for count in (3, 4)]
    function(PARAMS, plans[0])  # objects that JAX makes only once
    before = memory_regions._count_regions()
    function(PARAMS, plans[1])
    with_programs = memory_regions._count_regions()
    function.clear_cache()
    gc.collect()
    assert before < with_programs
    assert memory_regions._count_regions() < before


def test_what_a_forked_process_does_not_compile_has_failed_there():
    """The compiling thread does not exist in a fork, where `reset` runs."""
    worker, gate, begun = Worker(), threading.Event(), threading.Event()

    def wait_for_gate():
        begun.set()
        assert gate.wait(60)

    pending = [worker.submit(wait_for_gate), worker.submit(lambda: None)]
    assert begun.wait(60)
    worker.reset()
    for each in pending:
        assert each.done
        with pytest.raises(eb.CompilationError, match="forked"):
            each.wait(0)
    assert worker.submit(lambda: None).wait(60)
    gate.set()
