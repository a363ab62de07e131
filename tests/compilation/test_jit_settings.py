"""Tests `eb.jit` with settings, copies, JAX's stages and trainers."""

import copy
import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, PartitionSpec
from tiered_runs import PARAMS, loss_of, records_of, run_until_fine
from trees import sample_trees

import edbatch as eb
from edbatch.compilation.jax_settings import settings, under
from edbatch.compilation.settings import REFINE_AFTER

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_a_call_that_may_not_compile_says_what_is_new(batched, plan):
    function = eb.jit(loss_of(batched, []))
    function(PARAMS, plan)
    more = {**PARAMS, "table": jnp.zeros((11, 4))}
    with eb.set_stance("fail_on_compile"):
        function(PARAMS, plan)
        with pytest.raises(eb.CompilationError) as caught:
            function(more, plan)
    text = str(caught.value)
    assert "params['table'] changed from float32[10,4] to float32[11,4]" in text
    assert "warm_up" in text and "fail_on_compile" in text
    with pytest.raises(eb.PlanError):  # without the stance, the function itself raises
        function(more, plan)


@pytest.mark.parametrize("tiers", ["auto", "coarse", "fine"])
@pytest.mark.parametrize(
    ("odd", "shown"),
    [
        ("relu", "'relu'"),
        (print, "<built-in function print>"),
        (int, "<class 'int'>"),
        (np.array(["a"]), r"array\(\['a'\].*"),
    ],
    ids=["text", "function", "class", "array of texts"],
)
def test_what_is_no_array_is_named(tiers, odd, shown):
    function = eb.jit(lambda params, scale: params["w"] * scale, tiers=tiers)
    with pytest.raises(
        eb.ArgumentError,
        match=rf"<lambda> was called with {shown} at params\['act'\], which is neither"
        r" an array nor a number; .*static_argnames=.*eqx\.filter",
    ):
        function({"w": np.ones(3), "act": odd}, scale=2)
    assert function({"w": np.ones(3)}, scale=2).tolist() == [2, 2, 2]


def test_static_arguments_may_be_anything():
    function = eb.jit(lambda x, by: by(x), static_argnames="by", tiers="auto")
    assert function(1.5, abs).item() == function(-1.5, by=abs).item() == 1.5


@pytest.mark.parametrize("by_name", [False, True])
def test_a_static_argument_without_a_hash_is_named(by_name):
    function = eb.jit(lambda x, scales: x * scales[0], static_argnames="scales")
    args, kwargs = ((1.5,), {"scales": [2]}) if by_name else ((1.5, [2]), {})
    with pytest.raises(
        eb.ArgumentError,
        match=r"was called with \[2\] as the static argument scales, .* is not"
        r" hashable; pass a tuple",
    ):
        function(*args, **kwargs)
    assert function(1.5, (2,)).item() == 3


def test_settings_are_restored_and_checked():
    with pytest.raises(eb.EdbatchError, match=r"tiers is one of 'auto', 'fine'"):
        eb.use_tiers("finest")
    with pytest.raises(eb.EdbatchError, match=r"the stance is one of"):
        eb.set_stance("fail")
    with pytest.raises(eb.EdbatchError, match=r"tiers of eb.jit is one of"):
        eb.jit(lambda x: x, tiers=True)
    with pytest.raises(
        eb.EdbatchError, match=r"eb.jit takes a function but received 3"
    ):
        eb.jit(3)
    function = eb.jit(lambda x: x)
    with eb.set_stance("fail_on_compile"), pytest.raises(eb.CompilationError):
        function(1.0)
    assert function(1.0) == 1


def test_the_background_compiles_under_the_mesh_of_the_call(auto, batched, plan):
    seen = []
    inner = loss_of(batched, seen)

    def loss(params, plan, weights):
        split = jax.lax.with_sharding_constraint(weights, PartitionSpec("data"))
        return inner(params, plan) * split.sum()

    function = eb.jit(loss)
    with jax.set_mesh(Mesh(np.array(jax.devices()[:1]), ("data",))):
        coarse, fine = run_until_fine(function, PARAMS, plan, np.ones(4))
    assert seen == ["coarse", "fine"]
    np.testing.assert_allclose(fine, coarse[0], rtol=1e-5)


def test_settings_of_a_mesh_hold_inside_of_traces():
    with jax.set_mesh(Mesh(np.array(jax.devices()[:1]), ("data",))):
        own = settings()

        def function(x):
            with under(own), under(settings()):
                return 2 * x

        for transformed in (jax.jit(function), jax.grad(function)):
            assert transformed(1.0) == 2
        assert jax.vmap(function)(jnp.ones(2)).tolist() == [2, 2]
    with under(own):
        assert settings() == own


def test_a_mesh_is_told_as_what_is_new():
    function = eb.jit(lambda x: x)
    function(1.0)
    with jax.set_mesh(Mesh(np.array(jax.devices()[:1]), ("data",))):
        function(1.0)
    found = records_of(function.__qualname__)[-1].reason
    assert found.startswith("the mesh of jax.set_mesh changed from None to Mesh(")


@eb.jit
def at_top_level(x):
    return x + 1


class Model:
    @partial(eb.jit, static_argnums=0)
    def double(self, x):
        return 2 * x


def test_copies_pickles_and_methods():
    assert copy.copy(at_top_level) is copy.deepcopy(at_top_level) is at_top_level
    assert at_top_level.__name__ == "at_top_level"
    with pytest.raises(eb.PickleError, match=r"pickled by its name(.|\n)* top level"):
        pickle.dumps(eb.jit(lambda x: x))
    assert Model().double(3.0) == 6


def test_stages_are_those_of_jax(batched, plan):
    function = eb.jit(loss_of(batched, []))
    assert function.eval_shape(PARAMS, plan).shape == ()
    assert function.lower(PARAMS, plan).compile()(PARAMS, plan).shape == ()
    assert function.trace(PARAMS, plan).jaxpr is not None
    function(PARAMS, plan)
    function.clear_cache()
    function(PARAMS, plan)
    assert [each.tier for each in records_of(function.__qualname__)[-2:]] == 2 * [
        "fine"
    ]


def test_processes_of_one_job_run_fine_programs(auto, batched, plan, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    seen = []
    function = eb.jit(loss_of(batched, seen))
    for _ in range(2 * REFINE_AFTER):
        function(PARAMS, plan)
    assert seen == ["fine"]


def test_trainers_swap_their_steps(auto, batched):
    seen = []
    loss = loss_of(batched, seen)
    params = jax.tree.map(jnp.array, PARAMS)
    trainer = eb.training.Trainer(
        lambda params, plan, _: loss(params, plan), optax.sgd(1e-3), params
    )
    for minibatch in eb.Loader(batched, sample_trees(0, 8), 8).epochs(REFINE_AFTER):
        trainer.step(minibatch)
    eb.wait_for_compilations()
    for minibatch in eb.Loader(batched, sample_trees(0, 8), 8):
        trainer.step(minibatch)
    trainer.finish()
    assert seen == ["coarse", "fine"]
    assert trainer.losses == sorted(trainer.losses, reverse=True)
