"""nnx modules as cells: batched equals unbatched, and errors for bad input."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_trees import KEY, SEQUENCES, SIZES, TREES, NnxTree, tree_model, vectors

import edbatch as eb
import edbatch.flax
from edbatch.cell import pack_type

pytestmark = pytest.mark.usefixtures("quick_compiles")


def as_state(module):
    return nnx.state(module, nnx.Param)


class Recurrent(nnx.Module):
    def __init__(self, cell, rngs):
        self.step = cell(3, 4, rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, carry, sequence):
        for x in sequence:
            carry, y = self.step(carry, x)
        return self.head(y)


@pytest.mark.parametrize(("name", "products"), [("LSTMCell", 1), ("GRUCell", 2)])
def test_recurrent_cells_over_sequences(name, products):
    module = Recurrent(getattr(nnx, name), nnx.Rngs(0))
    step, out = eb.flax.cell(module.step), eb.flax.cell(module.head)
    zero = np.zeros(4, np.float32)
    start = zero if name == "GRUCell" else (zero, zero)

    def model(params, sequence):
        carry = start
        for x in sequence:
            carry, y = step(params["step"], carry, x)
        return out(params["head"], y)

    batched = eb.batch(model, sizes=SIZES)
    found = eb.verify(batched, as_state(module), SEQUENCES)
    assert found.max_gradient_error is not None
    packed = [pack_type(each, batched.types) for each in batched.types.types]
    assert sorted(each.after.num_products for each in packed)[-1] == products
    np.testing.assert_allclose(
        batched(as_state(module), SEQUENCES)[0],
        module(start, SEQUENCES[0]),
        rtol=1e-5,
    )


@pytest.mark.parametrize("form", [as_state, nnx.state, lambda module: module])
def test_methods_of_one_module_with_dropout(form):
    module = NnxTree(nnx.Rngs(0))
    before = jax.tree.map(np.asarray, nnx.state(module, nnx.Not(nnx.RngKey)))
    encode = tree_model(*(eb.flax.cell(module, each) for each in ("leaf", "compose")))
    batched = eb.batch(encode, sizes=SIZES)
    eb.verify(batched, form(module), TREES, rng=KEY)
    eb.verify(batched, form(module), TREES)
    plan = batched.plan(TREES)
    results = [batched.apply(form(module), plan, rng=rng)[0] for rng in (None, KEY)]
    assert not np.isclose(*results).all()
    after = nnx.state(module, nnx.Not(nnx.RngKey))
    jax.tree.map(np.testing.assert_array_equal, after, before)  # nothing was written


def test_a_cell_runs_any_module_of_its_kind():
    class Layers(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])

    module = Layers(nnx.Rngs(0))
    layer = eb.flax.cell(module.layers[0])

    def model(params, x):
        for each in params.layers:
            x = layer(each, x)
        return x

    batched = eb.batch(model, sizes=SIZES)
    eb.verify(batched, module, vectors())
    assert [str(each.key) for each in batched.types.types] == [
        "Linear@layers.0/0",
        "Linear@layers.1/1",
    ]


def test_two_layers_of_dropout_draw_different_numbers():
    class Twice(nnx.Module):
        def __init__(self, rngs):
            self.one, self.other = (nnx.Dropout(0.5, rngs=rngs) for _ in range(2))

        def __call__(self, x):
            return self.one(x), self.other(x)

    cell = eb.flax.cell(Twice(nnx.Rngs(0, dropout=1)))
    batched = eb.batch(lambda params, x: cell(params, x))
    one, other = batched(nnx.State({}), [np.ones(50, np.float32)] * 2, rng=KEY)
    assert len({each.tobytes() for each in map(np.asarray, (*one, *other))}) == 4


def norm_cell(module):
    cell = eb.flax.cell(module)
    return eb.batch(lambda params, x: cell(params, x))


def test_state_that_is_no_parameter():
    module = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    with pytest.raises(eb.CellError, match=r"writes to (mean|var), a BatchStat, but"):
        norm_cell(module)(module, [np.ones((1, 4), np.float32)])
    # Unbatched calls fail, too, and the module's averages are unchanged.
    with pytest.raises(eb.CellError, match=r"writes to (mean|var), a BatchStat, but"):
        eb.flax.cell(module)(module, np.ones((1, 4), np.float32))
    assert module.mean[...].tolist() == [0] * 4


class WithArrays(nnx.Module):
    """A module with arrays that are not variables."""

    def __init__(self, rngs, *, writes=False):
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.scale = nnx.data(jnp.array([2.0, 3.0, 4.0]))
        self.shift, self.writes = np.ones(3, np.float32), writes

    def __call__(self, x):
        if self.writes:
            self.scale = self.scale + x
        return jnp.tanh(self.linear(x) * self.scale + self.shift)


@pytest.mark.parametrize("form", [nnx.state, lambda module: module])
def test_arrays_that_are_no_variables(form):
    module = WithArrays(nnx.Rngs(0))
    step = eb.flax.cell(module)

    def model(params, sequence):
        x = jnp.ones(3)
        for _ in sequence:
            x = step(params, x)
        return x

    batched = eb.batch(model, sizes=SIZES)
    eb.verify(batched, form(module), SEQUENCES)
    found = batched(form(module), SEQUENCES[:1])[0]
    expected = jnp.ones(3)
    for _ in SEQUENCES[0]:
        expected = module(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(eb.CellError, match="a state without scale"):
        batched(as_state(module), SEQUENCES)


def test_arrays_that_are_no_variables_and_are_written_to():
    module = WithArrays(nnx.Rngs(0), writes=True)
    step = eb.flax.cell(module)
    with pytest.raises(eb.CellError, match=r"writes to scale, an array, .*; return it"):
        eb.batch(step, sizes=SIZES)(nnx.state(module), [np.ones(3, np.float32)])


class Sowing(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        self.sow(nnx.Intermediate, "seen", x)
        return self.linear(x)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
def test_what_is_sown_is_to_be_returned():
    module = Sowing(nnx.Rngs(0))
    batched = eb.batch(eb.flax.cell(module), sizes=SIZES)
    with pytest.raises(eb.CellError, match=r"seen, a.*; return what is sown"):
        batched(nnx.state(module), [np.ones(3, np.float32)])


def test_state_that_is_only_read():
    module = nnx.BatchNorm(4, rngs=nnx.Rngs(0))
    module.eval()
    eb.verify(norm_cell(module), module, vectors())
    eb.verify(norm_cell(module), nnx.state(module), vectors())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (
            lambda module: nnx.state(module, nnx.BatchStat),
            "a state without bias; pass the module, or nnx.state",
        ),
        (lambda module: {"kernel": np.ones(4)}, "received dict"),
        (as_state, r"a state without mean; pass .*if it has parameters alone"),
        (
            lambda module: (
                nnx.state(nnx.BatchNorm(4, rngs=nnx.Rngs(0)))
                | {"more": nnx.Param(jnp.ones(4))}
            ),
            "a state with more, which this module does not have",
        ),
    ],
)
def test_parameters_of_another_module(wrong, named):
    module = nnx.BatchNorm(4, rngs=nnx.Rngs(0), use_running_average=True)
    with pytest.raises(eb.CellError, match=r"BatchNorm takes the module.*" + named):
        norm_cell(module)(wrong(module), vectors())


def test_random_numbers_without_a_key():
    class Noise(nnx.Module):
        def __init__(self, rngs):
            self.rngs = rngs

        def __call__(self, x):
            return x + self.rngs.normal(x.shape)

    module = Noise(nnx.Rngs(0))
    batched = norm_cell(module)
    assert batched(module, vectors(), rng=KEY).shape == (2, 4)
    with pytest.raises(eb.CellError, match=r"Noise draws random numbers \(.*no key;"):
        batched(module, vectors())


def test_streams_of_nnx_are_not_named():
    with pytest.raises(eb.CellError, match="rngs names streams of linen modules, but"):
        eb.flax.cell(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), rngs=("dropout",))


class Learned(nnx.Module):
    """A recurrent module whose initial state is learned."""

    def __init__(self, rngs):
        self.start = nnx.Param(jnp.arange(4.0) / 5)
        self.step = nnx.GRUCell(3, 4, rngs=rngs)


@eb.cell(padded=("states",))
def total(states, mask):
    return jnp.sum(jnp.where(mask[:, None], states, 0), 0)


@eb.cell
def scaled(state, by):
    return state * by


@pytest.mark.parametrize("form", [as_state, lambda module: module])
def test_the_array_of_a_variable_is_a_value(form):
    """``variable[...]`` is returned for an empty sentence, and put in padded lists."""
    module = Learned(nnx.Rngs(0))
    step = eb.flax.cell(module.step)

    def model(params, sequence):
        start = params["start"] if form is as_state else params.start
        state = start[...]
        for x in sequence:
            part = params["step"] if form is as_state else params.step
            state, _ = step(part, state, x)
        return state, total([start[...], state]), scaled(start[...], 2.0)

    found = eb.verify(eb.batch(model), form(module), [*SEQUENCES, []])
    assert found.max_gradient_error is not None


def test_arrays_of_variables_in_recordings_that_were_pickled():
    params = as_state(Learned(nnx.Rngs(0)))
    batched = eb.batch(first_state_scaled, params=params)
    kept = pickle.loads(pickle.dumps([batched.record(each) for each in (1.0, 2.0)]))
    elsewhere = eb.batch(first_state_scaled)
    found = elsewhere(params, kept)
    for own, other in zip(found, batched(params, [1.0, 2.0]), strict=True):
        np.testing.assert_array_equal(own, other)


def first_state_scaled(params, by):
    return params["start"][...], scaled(params["start"][...], by)


def test_a_variable_is_not_indexed_otherwise():
    module = Learned(nnx.Rngs(0))
    with pytest.raises(eb.RecordingError, match=r"params.start was indexed with \[0\]"):
        eb.batch(lambda params, x: params.start[0])(module, [1])


class Scaled(nnx.Module):
    """A layer with a train/eval mode, and a number that is not a parameter."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(4, 4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.factor = 2

    def __call__(self, x):
        return self.drop(self.linear(x)) * self.factor


def set_factor(module):
    module.factor = 5


CHANGES = {
    "train": (Scaled, lambda module: module.train(), "Dropout differs"),
    "attribute": (Scaled, set_factor, "Scaled differs"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_plans_are_for_modules_with_the_same_attributes(change):
    """Otherwise a module in training mode would silently run without dropout."""
    kind, alter, named = CHANGES[change]
    module = kind(nnx.Rngs(0))
    module.eval()
    batched = eb.batch(partial(called, eb.flax.cell(module)), params=module)
    instances = vectors()
    plan, recording = batched.plan(instances), batched.record(instances[0])
    loader = eb.Loader(batched, instances, len(instances), seed=0)
    [loaded] = loader.epochs(1)
    before = batched.apply(module, plan, rng=KEY)
    np.testing.assert_array_equal(before, batched(module, instances))

    alter(module)
    runs = {
        "kept": lambda: batched.apply(module, plan, rng=KEY),
        "new": lambda: batched.apply(module, batched.plan(instances), rng=KEY),
        "loaded": lambda: batched.apply(module, loaded.plan, rng=KEY),
        "jit": lambda: jax.jit(batched.apply)(module, plan),
        "gradient": lambda: jax.grad(
            lambda module: batched.apply(module, plan, rng=KEY).sum(), allow_int=True
        )(module),
    }
    for name, run in runs.items():
        with pytest.raises(eb.PlanError, match=rf"other parameters: {named}.*again"):
            run()
            pytest.fail(f"{name} ran")
    with pytest.raises(eb.PlanError, match=f"for others: {named}.*record .* again"):
        batched(module, [recording], rng=KEY)

    found = batched(module, instances, rng=KEY)
    assert not np.array_equal(found, before)
    fresh = batched.plan(instances, params=module)
    np.testing.assert_array_equal(batched.apply(module, fresh, rng=KEY), found)
    batched.bind(module)
    again = batched.apply(module, batched.plan(instances), rng=KEY)
    np.testing.assert_array_equal(again, found)


def test_a_server_does_not_swap_modes():
    module = Scaled(nnx.Rngs(0))
    module.eval()
    batched = eb.batch(partial(called, eb.flax.cell(module)))
    other = Scaled(nnx.Rngs(1))
    with eb.Server(batched, module) as server:
        with pytest.raises(eb.PlanError, match=r"server was started.*Dropout differs"):
            server.swap_params(other)
        other.eval()
        server.swap_params(other)


def called(cell, params, x):
    return cell(params, x)


@pytest.mark.parametrize("transform", [nnx.remat, nnx.jit])
def test_methods_that_flax_transforms(transform):
    """They return all state as new arrays, but actual writes are still detected."""

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(4, 4, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        @transform
        def __call__(self, x):
            return self.drop(jnp.tanh(self.linear(x)))

        @transform
        def grow(self, x):
            bias = self.linear.bias
            bias[...] = bias[...] + 1
            return self.linear(x)

    module = Layer(nnx.Rngs(0))
    batched = norm_cell(module)
    found = eb.verify(batched, module, vectors(), rng=KEY)
    assert found.max_gradient_error is not None
    grow = eb.flax.cell(module, method="grow")
    for run in (grow, eb.batch(partial(called, grow))):
        with pytest.raises(eb.CellError, match=r"grow writes to linear\.bias, a Param"):
            run(module, vectors()[0] if run is grow else vectors())
