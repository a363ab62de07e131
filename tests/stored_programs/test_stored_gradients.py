"""Tests gradients by programs that an earlier process lowered.

A second function of the same model stands for the second process. All state of a model
belongs to its function, so the second one can find programs only in the folder.
"""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.errors import PlanError
from edbatch.stored_programs.folder import FOLDER, Folder
from edbatch.stored_programs.stored_program import NotStoredError, only_stored

SIZES = eb.Sizes(widths=(8,))
PARAMS, TREES = make_params(), sample_trees(0, 5)
BOTH = ["run_with_tapes", "differentiate"]


def assert_equal(found, expected):
    """Compares gradients with the tolerance of long chains of rounded products."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def loss_of(batched, read=lambda output: output):
    def loss(params, plan):
        leaves = jax.tree.leaves(read(batched.apply(params, plan)))
        return sum(jnp.sin(each).sum() for each in leaves)

    return loss


def new_function(model=encode, params=PARAMS, **options):
    return eb.batch(model, params=params, sizes=SIZES, **options)


def gradient(batched, params, instances, **how):
    found = jax.jit(jax.value_and_grad(loss_of(batched, **how)))
    return found(params, batched.plan(instances))


def unbatched(model, params, instances):
    def loss(params):
        outputs = [jax.tree.leaves(model(params, each)) for each in instances]
        return sum(jnp.sin(each).sum() for own in outputs for each in own)

    return jax.value_and_grad(loss)(params)


def test_the_second_process_traces_no_program(folder, made):
    expected = unbatched(encode, PARAMS, TREES)
    assert_equal(gradient(new_function(), PARAMS, TREES), expected)
    assert made == BOTH
    assert_equal(gradient(new_function(), PARAMS, TREES), expected)
    assert made == BOTH, "they are read"


@pytest.mark.parametrize("seed", range(3))
def test_other_weights_and_structures(folder, made, seed):
    params, trees = make_params(seed=seed), sample_trees(seed, 5)
    gradient(new_function(), make_params(seed=9), trees)
    assert_equal(
        gradient(new_function(), params, trees), unbatched(encode, params, trees)
    )
    assert made == BOTH


def test_what_is_read_of_the_results_is_another_backward_pass(folder, made):
    gradient(new_function(), PARAMS, TREES)
    found = gradient(new_function(), PARAMS, TREES, read=lambda output: output[0])
    assert made == [*BOTH, "differentiate"]

    def hidden(params, tree):
        return encode(params, tree)[0]

    assert_equal(found, unbatched(hidden, PARAMS, TREES))


@eb.cell
def rectify(params, x, number):
    return jax.nn.relu(params["w"] @ x) * number, number + 1


def rectified(params, x):
    first, number = rectify(params, x, 2)
    return rectify(params, first, number)[0]


def test_rules_of_tangents_integers_and_external_inputs(folder, made):
    rng = np.random.default_rng(1)
    params = {"w": rng.normal(size=(3, 3)).astype(np.float32), "n": np.int32(3)}
    instances = list(rng.normal(size=(4, 3)).astype(np.float32))
    for _ in range(2):
        batched = new_function(rectified, params)
        plan = batched.plan(instances)
        by = jax.grad(loss_of(batched), argnums=(0, 1), allow_int=True)
        slopes, plan_bar = jax.jit(by)(params, plan)
        expected = jax.grad(
            lambda w: sum(
                jnp.sin(rectified({**params, "w": w}, each)).sum() for each in instances
            )
        )(params["w"])
        np.testing.assert_allclose(slopes["w"], expected, rtol=1e-4, atol=1e-5)
        assert slopes["n"].dtype == jax.dtypes.float0
        [pool] = [each for each in plan_bar.pools.values() if each.ndim == 2]
        found = {tuple(np.round(row, 4)) for row in np.asarray(pool)}
        for each in instances:
            own = jax.grad(lambda x: jnp.sin(rectified(params, x)).sum())(each)
            assert any(np.allclose(own, row, atol=1e-3) for row in found)
    assert made == BOTH


@eb.cell
def noisy(params, x, rng=None):
    return x if rng is None else x * params["w"] + jax.random.normal(rng, x.shape)


def test_random_numbers(folder, made, monkeypatch):
    params = {"w": jnp.float32(2)}
    found = []
    for keep in (True, True, False):
        if not keep:
            monkeypatch.setattr(Folder, "path", None)
        batched = new_function(noisy, params)
        plan = batched.plan([jnp.ones(3), jnp.zeros(3)])

        def loss(params, plan, key, batched=batched):
            return jnp.sin(batched.apply(params, plan, rng=key)).sum()

        found.append(jax.jit(jax.value_and_grad(loss))(params, plan, jax.random.key(3)))
    assert_equal(found[0], found[2])
    assert_equal(found[1], found[2])
    assert made == BOTH


def test_a_cell_with_a_rule_is_traced(folder, made):
    @jax.custom_vjp
    def doubled(x):
        return 2 * x

    doubled.defvjp(lambda x: (2 * x, None), lambda _, bar: (3 * bar,))
    cell = eb.cell(lambda params, x: doubled(params * x), name="doubled")
    for _ in range(2):
        batched = eb.batch(lambda params, x: cell(params, x), params=jnp.float32(1))
        _, slope = gradient(batched, jnp.float32(1), [1.0, 0.5])
        np.testing.assert_allclose(slope, 3 * (np.cos(2) + 0.5 * np.cos(1)), rtol=1e-5)
    assert made == []


def test_values_without_a_gradient(folder, made):
    for _ in range(2):
        batched = new_function()
        plan = batched.plan(TREES)
        found = jax.jit(loss_of(batched))(PARAMS, plan)
        assert_equal(found, unbatched(encode, PARAMS, TREES)[0])
    assert made == ["execute"]


def test_under_vmap(folder, made):
    batched = new_function()
    plan = batched.plan(TREES)
    several = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), PARAMS)
    slope = jax.grad(loss_of(batched))
    expected = [
        unbatched(encode, jax.tree.map(lambda x: x[k], several), TREES)[1]  # noqa: B023
        for k in range(2)
    ]
    expected = jax.tree.map(lambda *own: jnp.stack(own), *expected)
    inside = jax.vmap(jax.jit(slope), in_axes=(0, None))(several, plan)
    outside = jax.jit(jax.vmap(slope, in_axes=(0, None)))(several, plan)
    assert_equal(inside, expected)
    assert_equal(outside, expected)


def test_second_derivatives_are_refused_as_ever(folder):
    batched = new_function()
    plan, slope = batched.plan(TREES), jax.grad(loss_of(batched))
    with pytest.raises(PlanError, match="first derivatives only"):
        jax.jit(jax.grad(lambda p: slope(p, plan)["leaf"].sum()))(PARAMS)


def test_another_platform_gets_operations(folder, made):
    batched = new_function()
    function = jax.jit(jax.grad(loss_of(batched)))
    plan = batched.plan(TREES)
    saved = export.export(function, platforms=["tpu"])(PARAMS, plan)
    assert made == BOTH
    assert saved.platforms == ("tpu",)
    assert "stablehlo.while" in saved.mlir_module()


def test_only_stored(folder, made):
    with only_stored(), pytest.raises(NotStoredError):
        gradient(new_function(), PARAMS, TREES)
    assert made == []
    gradient(new_function(), PARAMS, TREES)
    with only_stored():
        found = gradient(new_function(), PARAMS, TREES)
    assert_equal(found, unbatched(encode, PARAMS, TREES))


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other"])
def test_damaged_files_are_made_again(folder, made, damage):
    gradient(new_function(), PARAMS, TREES)
    for file in folder.iterdir():
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(
            {
                "cut": content[: len(content) // 2],
                "changed": content,
                "empty": b"",
                "other": b"x" * 100,
            }[damage]
        )
    with pytest.warns(UserWarning, match="is damaged.*edbatch cache --clear"):
        found = gradient(new_function(), PARAMS, TREES)
    assert_equal(found, unbatched(encode, PARAMS, TREES))
    assert made == BOTH * 2
    gradient(new_function(), PARAMS, TREES)
    assert made == BOTH * 2, "they were written again"


def test_what_jax_cannot_read_is_made_again(folder, made):
    gradient(new_function(), PARAMS, TREES)
    for file in folder.iterdir():
        key = file.name.removeprefix("edbatch-").removesuffix("-stablehlo")
        FOLDER.write(key, b"of another version")
    gradient(new_function(), PARAMS, TREES)
    assert made == BOTH * 2


def test_a_folder_that_is_gone(folder, made):
    folder.rmdir()
    found = gradient(new_function(), PARAMS, TREES)
    assert_equal(found, unbatched(encode, PARAMS, TREES))


def test_what_a_killed_process_left_is_not_read(folder, made):
    gradient(new_function(), PARAMS, TREES)
    for file in [*folder.iterdir()]:
        file.rename(f"{file}k2j3")  # the name of a file while it is written
    gradient(new_function(), PARAMS, TREES)
    assert made == BOTH * 2


def test_without_a_folder_nothing_is_kept(made):
    gradient(new_function(), PARAMS, TREES)
    assert made == []


@eb.cell
def two_outputs(params, x):
    return params["w"] * x, jnp.sin(params["w"] * x)


def test_which_output_is_read_is_a_part_of_the_key(folder, made):
    """The outputs have one shape, so nothing else distinguishes the backward passes."""
    params, instances = {"w": jnp.full(3, 0.5)}, [np.full(3, k) for k in (1.0, 2.0)]

    def model(params, x):
        return two_outputs(params, x)

    for k in (0, 1):
        found = gradient(
            new_function(model, params), params, instances, read=lambda out, k=k: out[k]
        )
        expected = unbatched(
            lambda params, x, k=k: two_outputs(params, x)[k], params, instances
        )
        assert_equal(found, expected)
    assert made == [*BOTH, "differentiate"]


def test_by_what_one_differentiates_is_a_part_of_the_key(folder, made):
    params, instances = {"w": jnp.full(3, 0.5)}, [np.full(3, 1.0, np.float32)]

    def model(params, x):
        return two_outputs(params, x)[0]

    gradient(new_function(model, params), params, instances)
    batched = new_function(model, params)
    by = jax.grad(lambda *own: batched.apply(*own).sum(), (0, 1), allow_int=True)
    slopes, plan_bar = jax.jit(by)(params, batched.plan(instances))
    np.testing.assert_allclose(slopes["w"], 1.0)
    [pool_bar] = plan_bar.pools.values()
    np.testing.assert_allclose(pool_bar[1], 0.5)  # row 0 belongs to no instance


@pytest.mark.parametrize("kept", [False, True], ids=["not kept", "kept"])
def test_rules_are_read_with_the_first_gradient(kept, monkeypatch, tmp_path):
    """The lookup of a forward program does not read them."""
    monkeypatch.setattr(Folder, "path", tmp_path if kept else None)
    slope = 2.0

    @jax.custom_jvp
    def scaled(x):
        return 1.0 * x

    @scaled.defjvp
    def _(primals, tangents):
        return scaled(*primals), slope * tangents[0]

    cell = eb.cell(lambda params, x: scaled(params["w"] * x), name="cell")
    params, instances = {"w": jnp.ones(3)}, [np.ones(3, np.float32)] * 2
    batched = new_function(lambda params, x: cell(params, x), params)
    batched(params, instances)
    slope = 3.0
    plan = batched.plan(instances)
    found = jax.jit(jax.grad(lambda p: batched.apply(p, plan).sum()))(params)
    np.testing.assert_allclose(found["w"], 6.0)


def count_tracers():
    jax.clear_caches()
    gc.collect()
    return sum(isinstance(each, jax.core.Tracer) for each in gc.get_objects())


def test_a_kept_program_holds_nothing_of_the_call_that_made_it(folder, made):
    batched, before = new_function(), count_tracers()
    jax.jit(jax.grad(loss_of(batched)))(PARAMS, batched.plan(TREES))
    assert made == BOTH
    assert count_tracers() <= before
