"""`eb.verify` finds every kind of difference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import all_states, encode, make_params, sample_trees

import edbatch as eb

pytestmark = pytest.mark.usefixtures("quick_compiles")

SIZES = eb.Sizes(widths=(4,))


class Corrupt:
    """A batched function with changed results."""

    def __init__(self, model, change):
        self._batched = eb.batch(model, sizes=SIZES)
        self._change = change
        self.model = model

    def __getattr__(self, name):
        return getattr(self._batched, name)

    def apply(self, params, plan, **options):
        return self._change(self._batched.apply(params, plan, **options))


def test_equal_results_pass_and_are_counted():
    found = eb.verify(eb.batch(encode, sizes=SIZES), make_params(), sample_trees(0, 4))
    assert found.instances == 4
    assert found.outputs == 4 * 8
    assert found.max_output_error < 1e-5
    assert found.max_gradient_error < 1e-4


def test_variables_that_changed_between_two_functions():
    """Neither function is compared with cells that read the other value."""
    factor = {"of": 2.0}

    @eb.cell
    def scale(params, x):
        return params * factor["of"] * x

    for value in (2.0, 3.0):
        factor["of"] = value
        batched = eb.batch(scale, params=jnp.float32(0.5), sizes=SIZES)
        eb.verify(batched, jnp.float32(0.5), [np.float32(1), np.float32(2)])
        eb.verify(batched, jnp.float32(0.5), [np.float32(4)])
        result = batched(jnp.float32(0.5), [np.float32(2)])
        assert result.tolist() == [value]


def test_cells_are_compiled_once_for_a_function():
    traced = []

    @eb.cell
    def scale(params, x):
        traced.append(x)
        return params * x

    batched = eb.batch(scale, params=jnp.float32(0.5), sizes=SIZES)
    instances = [np.float32(1), np.float32(2)]
    eb.verify(batched, jnp.float32(0.5), instances)
    before = len(traced)
    eb.verify(batched, jnp.float32(0.5), instances)
    assert len(traced) == before


def test_one_wrong_number_is_found_and_located():
    corrupt = Corrupt(encode, lambda r: (r[0], r[1].at[2, 1].add(1e-3)))
    with pytest.raises(
        eb.VerificationError, match=r"instance 2, output\[1\]: .* by 0.000[89]"
    ):
        eb.verify(corrupt, make_params(), sample_trees(0, 4))


def test_a_nan_is_found():
    corrupt = Corrupt(encode, lambda r: (r[0].at[1, 0].set(jnp.nan), r[1]))
    with pytest.raises(eb.VerificationError, match=r"instance 1, output\[0\]"):
        eb.verify(corrupt, make_params(), sample_trees(0, 4))


def test_a_wrong_structure_is_found():
    corrupt = Corrupt(encode, lambda r: [r[0], r[1]])
    with pytest.raises(eb.VerificationError, match=r"instance 0: .* has structure"):
        eb.verify(corrupt, make_params(), sample_trees(0, 4))


def test_a_wrong_shape_is_found():
    corrupt = Corrupt(encode, lambda r: (r[0][:, :2], r[1]))
    with pytest.raises(eb.VerificationError, match=r"has shape \(2,\) but the model"):
        eb.verify(corrupt, make_params(), sample_trees(0, 4))


def test_a_wrong_element_of_a_list_is_found():
    def change(ragged):
        values = ragged.values.at[int(ragged.lengths[0])].multiply(2)
        return eb.Ragged(values, ragged.segment_ids, ragged.lengths)

    corrupt = Corrupt(all_states, change)
    with pytest.raises(eb.VerificationError, match=r"instance 1, output\[0\]"):
        eb.verify(corrupt, make_params(), [(1, 2), 3, (4, 5)])


def test_coarse_gradients_are_those_of_coarse_programs(monkeypatch):
    def fine_step(*_, **__):
        raise AssertionError("a fine program is traced")

    monkeypatch.setattr("edbatch.executor.loops.fine_step", fine_step)
    batched = eb.batch(encode, sizes=SIZES)
    found = eb.verify(batched, make_params(), sample_trees(0, 4), tier="coarse")
    assert found.max_gradient_error < 1e-4
    with pytest.raises(AssertionError, match="a fine program is traced"):
        eb.verify(batched, make_params(), sample_trees(0, 4))


@pytest.mark.parametrize("tier", ["fine", "coarse"])
def test_a_wrong_gradient_is_found(tier):
    import jax

    @jax.custom_vjp
    def lose(x):
        return x

    lose.defvjp(lambda x: (x, None), lambda _, bar: (bar * 1.01,))
    corrupt = Corrupt(encode, lambda r: (lose(r[0]), r[1]))
    with pytest.raises(eb.VerificationError, match=r"gradient of params\['"):
        eb.verify(corrupt, make_params(), sample_trees(0, 4), tier=tier)
    assert eb.verify(corrupt, make_params(), sample_trees(0, 4), gradients=False)


def test_the_tolerance_can_be_set():
    corrupt = Corrupt(encode, lambda r: (r[0], r[1] + np.float32(1e-3)))
    eb.verify(corrupt, make_params(), sample_trees(0, 4), tolerance=1e-2)


def test_recordings_are_no_instances():
    trees = sample_trees(0, 3)
    batched = eb.batch(encode, params=make_params())
    recordings = batched.record_all(trees)
    with pytest.raises(eb.EdbatchError, match=r"received recordings, .* pass the"):
        eb.verify(batched, make_params(), [trees[0], recordings[1]])


class Shifted:
    """A batched function whose parameters are a rounding error smaller.

    Args:
        model: The model.
        change: Changes the result, or None.
    """

    def __init__(self, model, change=None):
        self._batched = eb.batch(model, sizes=SIZES)
        self._change, self.model = change, model

    def __getattr__(self, name):
        return getattr(self._batched, name)

    def apply(self, params, plan, **options):
        smaller = {**params, "weight": params["weight"] * np.float32(1 - 2**-23)}
        result = self._batched.apply(smaller, plan, **options)
        return result if self._change is None else self._change(result)


@eb.cell
def with_a_kink(params, x):
    """Returns a relu whose argument, for 1, is one rounding error above zero."""
    bias = np.float32(1 - 2**-24)
    return {
        "kink": jnp.maximum(params["weight"] * x - bias, 0),
        "other": params["other"] * x,
    }


@eb.cell
def with_thresholds(params, x):
    """Returns outputs that jump where the product, for 1, is just above a bias."""
    product, bias = params["weight"] * x, np.float32(1 - 2**-24)
    return {
        "above": product > bias,
        "gated": jnp.where(product > bias, product, 0),
        "label": jnp.argmax(jnp.stack([product[0], bias])),
        "product": product,
    }


PARAMS_AT_A_KINK = {"weight": np.ones(3, "f4"), "other": np.ones(3, "f4")}
ONE_AT_A_KINK = [np.array([1, 2, 3], "f4"), np.full(3, 2, "f4")]


def test_a_gradient_that_jumps_within_rounding_raises_no_alarm():
    batched = eb.batch(with_a_kink, sizes=SIZES)
    found = eb.verify(batched, PARAMS_AT_A_KINK, ONE_AT_A_KINK)
    assert found.gradient_jumps == 0
    found = eb.verify(Shifted(with_a_kink), PARAMS_AT_A_KINK, ONE_AT_A_KINK)
    assert (found.output_jumps, found.gradient_jumps) == (0, 1)
    assert found.max_gradient_error < 1e-4


@pytest.mark.parametrize(("name", "wrong"), [("other", "other"), ("kink", "weight")])
def test_an_error_where_no_gradient_jumps_is_found(name, wrong):
    """Also in another element of a parameter whose gradient jumps."""

    def change(result):
        own = result[name]
        return {**result, name: own + 1e-3 * (own - jax.lax.stop_gradient(own))}

    match = rf"gradient of params\['{wrong}'\]"
    with pytest.raises(eb.VerificationError, match=match):
        eb.verify(Shifted(with_a_kink, change), PARAMS_AT_A_KINK, ONE_AT_A_KINK)


def test_outputs_that_jump_within_rounding_raise_no_alarm():
    batched = eb.batch(with_thresholds, sizes=SIZES)
    found = eb.verify(batched, PARAMS_AT_A_KINK, ONE_AT_A_KINK)
    assert found.output_jumps == 0
    found = eb.verify(Shifted(with_thresholds), PARAMS_AT_A_KINK, ONE_AT_A_KINK)
    assert found.output_jumps == 3
    assert found.max_output_error < 1e-6


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("above", lambda own: own.at[0, 1].set(False)),
        ("gated", lambda own: own.at[0, 1].add(1e-3)),
        ("product", lambda own: own + 1e-3),
    ],
)
def test_an_error_where_no_output_jumps_is_found(name, change):
    wrong = Shifted(with_thresholds, lambda r: {**r, name: change(r[name])})
    with pytest.raises(eb.VerificationError, match=rf"instance 0, output\['{name}'\]"):
        eb.verify(wrong, PARAMS_AT_A_KINK, ONE_AT_A_KINK)


@pytest.mark.parametrize("model", [with_a_kink, with_thresholds])
def test_a_given_tolerance_is_all_that_a_number_may_differ_by(model):
    match = r"gradient of params\['weight'\]|output\['above'\]"
    with pytest.raises(eb.VerificationError, match=match):
        eb.verify(Shifted(model), PARAMS_AT_A_KINK, ONE_AT_A_KINK, tolerance=1e-4)
