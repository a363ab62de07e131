"""Tests gradients outside compiled functions: a program for each pass, in tiers."""

import dataclasses
import gc
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shared_memory import aligned, keep_busy
from tiered_runs import PARAMS
from trees import assert_equal, encode, make_params, sample_trees

import edbatch as eb
from edbatch.compilation.settings import REFINE_AFTER, TIERS

pytestmark = pytest.mark.usefixtures("quick_compiles")

TREES = sample_trees(0, 5)


@pytest.fixture
def batched():
    return eb.batch(encode, params=PARAMS, sizes=eb.Sizes(widths=(8,)))


@pytest.fixture
def plan(batched):
    return batched.plan(TREES)


def loss_of(batched, params, plan):
    hidden, cell = batched.apply(params, plan)
    return (hidden**2).sum() + cell.sum()


def unbatched_loss(params):
    found = [encode(params, each) for each in TREES]
    return sum((hidden**2).sum() + cell.sum() for hidden, cell in found)


def records(tier):
    own = [each for each in eb.compile_report() if each.function.startswith("encode, ")]
    return [each for each in own if each.tier == tier][-2:]


@pytest.mark.parametrize("tiers", TIERS)
def test_it_is_the_gradient_of_the_model_in_all_tiers(tiers, batched, plan):
    expected = jax.value_and_grad(unbatched_loss)(PARAMS)
    with eb.use_tiers(tiers):
        for _ in range(REFINE_AFTER + 1):
            found = jax.value_and_grad(partial(loss_of, batched))(PARAMS, plan)
            assert_equal(found, expected)
            eb.wait_for_compilations(60)


def test_no_gradient_after_the_first_waits_for_a_compilation(
    auto, batched, plan, compiled
):
    gradient = jax.grad(partial(loss_of, batched))
    coarse = gradient(PARAMS, plan)
    with eb.set_stance("fail_on_compile"):
        for _ in range(REFINE_AFTER - 1):
            gradient(PARAMS, plan)
        assert eb.wait_for_compilations(60)  # for the forward pass
        before = len(compiled)
        assert_equal(gradient(PARAMS, plan), coarse)  # by coarse programs again
        assert eb.wait_for_compilations(60)  # for the backward pass
        assert_equal(gradient(PARAMS, plan), coarse)
        assert_equal(gradient(PARAMS, plan), coarse)
    assert set(compiled[before:]) == {"edbatch-compile"}
    assert [each.runs for each in records("coarse")] == [REFINE_AFTER + 1] * 2
    forward, backward = records("fine")
    assert forward.function == "encode, forward pass" and forward.runs == 3
    assert backward.function == "encode, backward pass" and backward.runs == 2
    assert forward.background and backward.background
    assert batched.compiles == 2  # programs of the forward pass


def run_until_fine(gradient, *args):
    found = [gradient(*args) for _ in range(REFINE_AFTER)]
    assert eb.wait_for_compilations(60)
    found += [gradient(*args)]
    assert eb.wait_for_compilations(60)
    return [*found, gradient(*args)]


@pytest.mark.parametrize("tiers", ["coarse", "fine"])
def test_one_tier_compiles_two_programs(tiers, batched, plan, compiled):
    with eb.use_tiers(tiers):
        gradient = jax.grad(partial(loss_of, batched))
        gradient(PARAMS, plan)
        before, known = len(compiled), len(eb.compile_report().records)
        gradient(PARAMS, plan)
        gradient(jax.tree.map(lambda x: 2 * x, PARAMS), plan)
    assert len(eb.compile_report().records) == known
    assert [each.runs for each in records(tiers)] == [3, 3]
    assert len(compiled) <= before + len(PARAMS)  # the multiplications by 2


def on_first_device(tree):
    return jax.device_put(tree, jax.devices()[0])


def on_all_devices(tree):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("own",))
    return jax.device_put(tree, jax.NamedSharding(mesh, jax.P()))


@pytest.mark.parametrize(
    "place",
    [
        on_first_device,
        pytest.param(on_all_devices, marks=pytest.mark.devices),
        lambda tree: jax.tree.map(np.asarray, tree),
    ],
    ids=["committed", "replicated", "numpy"],
)
def test_wherever_parameters_lie(auto, batched, plan, place):
    params = place(PARAMS)
    gradient = jax.grad(partial(loss_of, batched))
    expected = gradient(params, plan)
    with eb.set_stance("fail_on_compile"):
        for found in run_until_fine(gradient, params, plan):
            assert_equal(found, expected)
    assert [each.runs > 0 for each in records("fine")] == [True] * 2


def test_a_backward_pass_goes_with_its_forward_pass(auto, batched, plan):
    _, pull = jax.vjp(lambda params: loss_of(batched, params, plan), PARAMS)
    [expected] = pull(jnp.float32(2))
    run_until_fine(jax.grad(partial(loss_of, batched)), PARAMS, plan)
    fine, coarse = (
        [each.runs for each in records(tier)] for tier in ("fine", "coarse")
    )
    assert_equal(pull(jnp.float32(2))[0], expected)
    [half] = pull(jnp.float32(1))
    assert_equal(jax.tree.map(lambda x: 2 * x, half), expected)
    assert [each.runs for each in records("fine")] == fine
    assert [each.runs for each in records("coarse")] == [coarse[0], coarse[1] + 2]


def test_arrays_of_numpy_may_change_before_the_pull(batched, plan):
    own, own_plan = jax.tree.map(aligned, (PARAMS, plan))
    expected = jax.grad(partial(loss_of, batched))(PARAMS, plan)
    keep_busy()
    _, pull = jax.vjp(lambda params: loss_of(batched, params, own_plan), own)
    for each in jax.tree.leaves((own, own_plan)):
        each[...] = 0
    assert_equal(pull(jnp.float32(1))[0], expected)


def test_other_derivatives_do_not_wait_for_their_fine_program(
    auto, batched, plan, compiled
):
    def of_hidden(params):
        return batched.apply(params, plan)[0].sum()

    expected = jax.grad(
        lambda params: sum(encode(params, each)[0].sum() for each in TREES)
    )(PARAMS)
    run_until_fine(jax.grad(partial(loss_of, batched)), PARAMS, plan)
    before = [each.seconds for each in eb.compile_report()]
    for found in run_until_fine(jax.grad(of_hidden), PARAMS):
        assert_equal(found, expected)
    added = list(eb.compile_report())[len(before) :]
    new = {each.tier: each for each in added}  # two threads add them, in any order
    assert len(added) == len(new) == 2
    assert [new[tier].background for tier in ("fine", "coarse")] == [True, False]
    assert new["coarse"].reason.startswith("cotangents[1] was removed") or (
        "of outputs [0] by inputs" in new["coarse"].reason
    )
    # More runs if it was compiled before the third call.
    assert new["fine"].runs >= 2


def test_settings_and_meshes_of_the_pull_are_its_own(auto, batched, plan):
    def step():
        with jax.default_matmul_precision("highest"):
            _, pull = jax.vjp(lambda params: loss_of(batched, params, plan), PARAMS)
        return pull(jnp.float32(1))

    expected = step()
    with eb.set_stance("fail_on_compile"):
        for found in run_until_fine(step):
            assert_equal(found, expected)
    assert [each.runs > 0 for each in records("fine")] == [True] * 2


def test_inputs_some_parameters_and_results_that_are_inputs():
    @eb.cell
    def scale(params, x):
        return params["w"] * x

    def model(params, x):
        return {"own": x, "scaled": [scale(params, each) for each in x], "n": len(x)}

    inputs = [[np.float32(2), np.float32(3)], [np.float32(5)]]
    params = {"w": jnp.float32(7), "steps": jnp.int32(3)}
    batched = eb.batch(model, params=params)
    plan = batched.plan(inputs)

    def loss(w, pools):
        own = dataclasses.replace(plan, pools={**plan.pools, **pools})
        found = batched.apply({**params, "w": w}, own)
        own_sum = 3 * found["own"].values.sum()
        return (found["scaled"].values ** 2).sum() + own_sum + found["n"].sum()

    floats = {
        kind: jnp.asarray(own)
        for kind, own in plan.pools.items()
        if jnp.issubdtype(own.dtype, jnp.floating)
    }
    expected = jax.jit(jax.grad(loss, argnums=(0, 1)))(params["w"], floats)
    assert expected[0] == 2 * 7 * (4 + 9 + 25)
    [of_inputs] = expected[1].values()
    assert set(of_inputs[1:7].tolist()) == {2 * 49 * 2, 2 * 49 * 3, 2 * 49 * 5, 3}
    for tiers in TIERS:
        with eb.use_tiers(tiers):
            assert_equal(jax.grad(loss, argnums=(0, 1))(params["w"], floats), expected)
            assert jax.grad(loss)(params["w"], floats) == expected[0]


def test_integers_among_the_parameters(auto):
    @eb.cell
    def power(params, x):
        return params["w"] * x ** params["n"]

    params = {"w": jnp.float32(7), "n": jnp.int32(3)}
    batched = eb.batch(power, params=params)
    plan = batched.plan([2.0, 3.0])
    found = jax.grad(lambda own: batched.apply(own, plan).sum(), allow_int=True)(params)
    assert found["w"] == 8 + 27
    assert found["n"].dtype == jax.dtypes.float0


def test_nothing_is_kept_of_a_function_that_is_gone():
    batched = eb.batch(encode, params=PARAMS, sizes=eb.Sizes(widths=(8,)))
    jax.grad(partial(loss_of, batched))(PARAMS, batched.plan(TREES))
    gone = weakref.ref(batched)
    del batched
    gc.collect()
    assert gone() is None


def test_random_numbers_are_those_of_other_calls():
    @eb.cell
    def noisy(params, x, *, rng):
        return params * x * jax.random.normal(rng)

    batched = eb.batch(noisy, params=jnp.float32(2))
    plan = batched.plan([1.0, 2.0, 3.0])
    key = jax.random.key(3)

    def loss(params):
        return batched.apply(params, plan, rng=key).sum()

    expected = batched.apply(jnp.float32(1), plan, rng=key).sum()
    for tiers in ("coarse", "fine"):
        with eb.use_tiers(tiers):
            found = jax.grad(loss)(jnp.float32(2))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_inside_vmap_and_vmap_inside(batched, plan):
    params = jax.tree.map(lambda x: jnp.stack([x, 2 * x, 3 * x]), make_params())
    gradient = jax.grad(partial(loss_of, batched))
    expected = [
        gradient(jax.tree.map(lambda x, k=k: x[k], params), plan) for k in range(3)
    ]
    expected = jax.tree.map(lambda *each: jnp.stack(each), *expected)
    assert_equal(jax.vmap(gradient, (0, None))(params, plan), expected)

    def total(params):
        return jax.vmap(partial(loss_of, batched), (0, None))(params, plan).sum()

    assert_equal(jax.grad(total)(params), expected)


def test_what_is_not_differentiated_runs_as_a_direct_call(auto, batched, plan):
    hidden, _ = batched.apply(PARAMS, plan)
    known = eb.compile_report().records

    def loss(scale):
        return scale * batched.apply(PARAMS, plan)[0].sum()

    np.testing.assert_allclose(jax.grad(loss)(1.0), hidden.sum(), rtol=1e-5)
    assert eb.compile_report().records == known
    assert known[-1].function == "encode" and known[-1].runs == 2


def test_compiling_may_be_forbidden(batched, plan):
    with (
        eb.set_stance("fail_on_compile"),
        pytest.raises(
            eb.CompilationError,
            match=r"encode, forward pass would have to.*compute one such gradient",
        ),
    ):
        jax.grad(partial(loss_of, batched))(PARAMS, plan)
