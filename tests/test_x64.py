"""Both settings of ``jax_enable_x64``, one after the other and side by side."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")

SIZES = eb.Sizes(widths=(4,))


@eb.cell
def scale(params, x):
    return params * x


@eb.cell
def constant(params):
    return jnp.ones(3) * params


def model(params, x):
    return scale(params, scale(params, x)), constant(params)


PARAMS = jnp.float32(2)
NUMBERS = [0.1, 0.2]


@pytest.fixture
def batched():
    return eb.batch(model, sizes=SIZES, params=PARAMS)


def dtypes(batched, params=PARAMS, instances=NUMBERS):
    found = {str(each.dtype) for each in jax.tree.leaves(batched(params, instances))}
    return ", ".join(sorted(found))


def test_the_setting_may_change_between_calls(batched):
    """Numbers and cells' results have the same dtypes as in the unbatched model."""
    for x64, dtype in [(False, "float32"), (True, "float64")] * 2:
        with jax.enable_x64(x64):
            assert dtypes(batched) == dtype
            assert model(PARAMS, 0.1)[0].dtype == dtype
    assert batched.compiles == 2
    for x64 in (False, True):
        with jax.enable_x64(x64):
            eb.verify(batched, PARAMS, NUMBERS)


def test_the_global_setting_may_change(batched):
    assert dtypes(batched) == "float32"
    jax.config.update("jax_enable_x64", True)
    try:
        assert dtypes(batched) == "float64"
        assert batched(PARAMS, [2**40])[0].tolist() == [4 * 2.0**40]
    finally:
        jax.config.update("jax_enable_x64", False)
    assert dtypes(batched) == "float32"
    with pytest.raises(eb.RecordingError, match="does not fit int32"):
        batched(PARAMS, [2**40])


def test_threads_may_have_settings_of_their_own(batched):
    def call(x64):
        with jax.enable_x64(x64):
            return [dtypes(batched, PARAMS, [k + 0.5]) for k in range(10)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, [True, False] * 4))
    assert found == [["float64"] * 10, ["float32"] * 10] * 4


@pytest.mark.parametrize("made", [False, True])
def test_recordings_and_plans_belong_to_their_setting(batched, made):
    with jax.enable_x64(made):
        recording = batched.record(0.1)
        plan = batched.plan([recording])
    was, now = ("on", "off") if made else ("off", "on")
    text = rf"was made while jax_enable_x64 was {was}, but it is {now} here, .*{made}"
    with jax.enable_x64(not made):
        own = batched.record(0.1)
        for use in [
            lambda: batched.plan([recording]),
            lambda: batched.plan([recording, 0.1]),
            lambda: batched.plan([own, recording]),
            lambda: batched.record_all([recording]),
            lambda: batched.apply(PARAMS, plan),
            lambda: jax.jit(batched.apply)(PARAMS, plan),
            lambda: jax.grad(lambda p: batched.apply(p, plan)[0].sum())(PARAMS),
            lambda: batched.sharded().plan([recording]),
        ]:
            with pytest.raises(eb.PlanError, match=text):
                use()
    with jax.enable_x64(made):
        assert jax.jit(batched.apply)(PARAMS, plan)[0].dtype == f"float{32 << made}"


def test_a_sharded_plan_belongs_to_its_setting(batched):
    sharded = batched.sharded()
    plan = sharded.plan(NUMBERS)
    with jax.enable_x64(True):
        with pytest.raises(eb.PlanError, match=r"the plan was made while .* was off"):
            sharded.apply(PARAMS, plan)
        assert dtypes(sharded) == "float64"
    assert dtypes(sharded) == "float32"


def test_shapes_bound_last_hold_under_both_settings(batched):
    with jax.enable_x64(True):
        batched.record(0.1)
    batched.bind(jnp.ones(3))
    with jax.enable_x64(True):
        assert batched.types.params_spec.shape == (3,)


@pytest.mark.parametrize("x64", [False, True])
def test_a_loader_keeps_the_setting_that_it_was_made_under(batched, x64):
    """The loader's threads do not see the context, and neither do later plans."""
    with jax.enable_x64(x64):
        loader = eb.Loader(batched, [0.1, 0.2, 0.3], 2, shuffle=False)
        found = [batched.apply(PARAMS, each.plan)[0] for each in loader]
    assert [each.dtype for each in found] == [f"float{32 << x64}"] * 2


def test_parameters_of_the_other_setting_have_a_sentence(batched):
    with jax.enable_x64(True):
        params = jnp.float64(2)
        assert dtypes(batched, params) == "float64"
    plan = batched.plan(NUMBERS)
    text = "hold an array of float64, made while .*float32.*astype"
    with pytest.raises(eb.PlanError, match=text):
        batched(params, NUMBERS)
    with pytest.raises(eb.PlanError, match=text):
        batched.apply(params, plan)
    assert dtypes(batched, np.float64(2)) == "float32"


def test_float64_is_verified_to_its_own_precision():
    with jax.enable_x64(True):
        params = jax.tree.map(lambda x: x.astype(jnp.float64), make_params())
        batched = eb.batch(encode, sizes=SIZES)
        found = eb.verify(batched, params, sample_trees(0, 4))
    assert 0 < found.max_gradient_error < 1e-12
