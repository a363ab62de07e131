"""Tests direct calls of batched functions: tiers, counts, and compiling ahead."""

import jax
import jax.numpy as jnp
import pytest
from trees import assert_equal, encode, make_params, sample_trees

import edbatch as eb
from edbatch.compilation.settings import REFINE_AFTER

pytestmark = pytest.mark.usefixtures("quick_compiles")

PARAMS = make_params()
SIZES = eb.Sizes(widths=(8,))
TREES = sample_trees(0, 6)


@pytest.fixture
def auto():
    with eb.use_tiers("auto"):
        yield
    assert eb.wait_for_compilations(60)


@pytest.fixture(params=["one device", "sharded"])
def function(request):
    batched = eb.batch(encode, params=PARAMS, sizes=SIZES)
    return batched if request.param == "one device" else batched.sharded()


def test_direct_calls_swap_their_programs(auto, function):
    expected = [encode(PARAMS, each)[0] for each in TREES]
    for _ in range(REFINE_AFTER - 1):
        coarse = function(PARAMS, TREES)
        assert_equal(list(coarse[0]), expected)
    assert function.compiles == 1
    assert_equal(function(PARAMS, TREES), coarse)
    assert eb.wait_for_compilations(60)
    assert function.compiles == 2
    assert_equal(function(PARAMS, TREES), coarse)
    assert function.compiles == 2
    one, two = tuple(eb.compile_report())[-2:]
    assert one.function.startswith("encode") and one.programs is two.programs
    assert (one.tier, two.tier) == ("coarse", "fine")
    assert (one.runs, two.runs) == (REFINE_AFTER, 1)


def test_parameters_of_numpy(auto):
    batched = eb.batch(encode, params=PARAMS, sizes=SIZES)
    own = jax.tree.map(lambda x: jax.device_get(x), PARAMS)
    expected = batched(PARAMS, TREES)
    for _ in range(REFINE_AFTER + 1):
        assert_equal(batched(own, TREES), expected)
        eb.wait_for_compilations()


@pytest.mark.parametrize("block", [True, False])
def test_after_warm_up_nothing_compiles(auto, function, block):
    sample = sample_trees(1, 12)
    handle = function.warm_up(sample, [2, 6], params=PARAMS, block=block)
    assert handle.wait(120) and handle.done
    compiles = function.compiles
    assert handle.programs == compiles >= 1
    assert repr(handle) == f"<{compiles} programs, 0 to compile>"
    with eb.set_stance("fail_on_compile"):
        for k in range(0, 12, 6):
            found = function(PARAMS, sample[k : k + 6])
            assert_equal(
                list(found[0]), [encode(PARAMS, each)[0] for each in sample[k : k + 6]]
            )
        for k in range(0, 12, 2):
            function(PARAMS, sample[k : k + 2])
    assert function.compiles == compiles
    assert function.warm_up(sample, [2, 6], params=PARAMS).programs == 0


def test_without_warm_up_a_server_refuses(function):
    with (
        eb.set_stance("fail_on_compile"),
        pytest.raises(eb.CompilationError, match=r"it is the first call.*warm_up"),
    ):
        function(PARAMS, TREES)


@pytest.mark.parametrize("size", [0, -1, 1.5, "2"])
def test_batch_sizes_that_are_none(function, size):
    with pytest.raises(eb.PlanError, match=r"a batch size of warm_up is a whole numb"):
        function.warm_up(TREES, [size], params=PARAMS)


def test_a_sample_without_instances(function):
    with pytest.raises(eb.PlanError, match="at least one instance"):
        function.warm_up([], params=PARAMS)


def test_a_sample_smaller_than_the_batch_is_repeated(function):
    function.warm_up(TREES[:1], [4], params=PARAMS)
    with eb.set_stance("fail_on_compile"):
        function(PARAMS, TREES[:1] * 4)


def test_verify_is_about_the_fine_program(auto):
    batched = eb.batch(encode, params=PARAMS, sizes=SIZES)
    batched(PARAMS, TREES)
    eb.verify(batched, PARAMS, TREES, gradients=False)
    *_, last = eb.compile_report()
    assert last.tier == "fine" and not last.background


def test_fine_on_request_after_coarse_runs(auto):
    batched = eb.batch(encode, params=PARAMS, sizes=SIZES)
    plan = batched.plan(TREES)
    batched.apply(PARAMS, plan)
    with eb.use_tiers("fine"):
        batched.apply(PARAMS, plan)
        assert batched.compiles == 2
    batched.apply(PARAMS, plan)
    one, two = tuple(eb.compile_report())[-2:]
    assert (one.tier, one.runs, two.tier, two.runs) == ("coarse", 1, "fine", 2)


def test_random_numbers_are_the_same_in_both_tiers(auto):
    @eb.cell
    def noisy(params, x, rng):
        return params * x + jax.random.normal(rng)

    batched = eb.batch(lambda params, x: noisy(params, x), sizes=SIZES)
    key = jax.random.key(3)
    first = batched(jnp.float32(2), [1.0, 2.0, 3.0], rng=key)
    for _ in range(REFINE_AFTER):
        batched(jnp.float32(2), [1.0, 2.0, 3.0], rng=key)
    eb.wait_for_compilations()
    assert_equal(batched(jnp.float32(2), [1.0, 2.0, 3.0], rng=key), first)
