"""Grain pipelines: the same plans wherever recorded; Grain's order and state."""

import copy
import functools
import json
import pickle
import re
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loaded_data import Trees, word_of
from trees import encode, make_params, sample_trees

import edbatch as eb

grain = pytest.importorskip("grain")
flags = pytest.importorskip("absl.flags")

SIZES = eb.Sizes(widths=(4, 16))


@pytest.fixture(autouse=True)
def parsed_flags():
    """Marks absl flags, which Grain reads, as parsed: no absl main does so here."""
    flags.FLAGS.mark_as_parsed()


@pytest.fixture(scope="module")
def params():
    return make_params()


def new_batched(params):
    return eb.batch(encode, params=params, sizes=SIZES)


def pipeline(batched, workers=0, count=11, **options):
    record = eb.grain.RecordBatch(batched, pad_to=4, **options)
    data = grain.MapDataset.source(Trees(count)).seed(3).shuffle()
    data = data.batch(4, batch_fn=record).to_iter_dataset()
    if workers:
        data = data.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return data.map(eb.grain.PlanBatch(batched))


def arrays(batch):
    return [np.asarray(each).tolist() for each in jax.tree.leaves(batch.plan)]


def decode(params, tree):
    return encode(params, tree)


@pytest.mark.parametrize("travels", [False, True])
def test_a_batch_of_another_model_is_refused_and_leaves_nothing(params, travels):
    batched = new_batched(params)
    other = eb.batch(decode, params=params, sizes=SIZES)
    recorded = eb.grain.RecordBatch(other)(sample_trees(0, 3))
    if travels:
        recorded = pickle.loads(pickle.dumps(recorded))
        assert recorded.model is None
    plan = eb.grain.PlanBatch(batched)
    with pytest.raises(eb.LoaderError, match=r"another model, .*decode, than .*encode"):
        plan(recorded)
    assert not batched.types.types
    assert eb.grain.PlanBatch(other)(recorded).instances == 3


@pytest.mark.parametrize("travels", [False, True])
def test_a_batch_for_other_parameters_is_refused(params, travels):
    def recorded_by(batched):
        found = eb.grain.RecordBatch(batched)(sample_trees(0, 3))
        return pickle.loads(pickle.dumps(found)) if travels else found

    wide = make_params(2 * params["leaf"].shape[0])
    name = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(params)[0][0][0])
    batched = new_batched(params)
    plan = eb.grain.PlanBatch(batched)
    message = (
        "a batch was recorded for parameters of another structure, .*RecordBatch"
        if travels
        else re.escape(f"params{name} is") + ".* but a batch was recorded for .*RecordB"
    )
    with pytest.raises(eb.PlanError, match=message):
        plan(recorded_by(new_batched(wide)))
    half = eb.batch(encode, params=params, compute_dtype=jnp.bfloat16)
    with pytest.raises(eb.LoaderError, match=r"compute_dtype=bfloat16 but .* has None"):
        plan(recorded_by(half))
    assert not batched.types.types
    old = recorded_by(batched)
    batched.bind(wide)
    with pytest.raises(eb.PlanError, match=r"after \.bind make a new RecordBatch"):
        plan(old)
    assert plan(recorded_by(batched)).instances == 3


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Layer:
    weights: np.ndarray
    act: Any = field(metadata={"static": True})


@eb.cell
def run_layer(layer, x):
    return layer.act(layer.weights @ x)


def deep(params, count):
    x = np.ones(3, np.float32)
    for _ in range(count):
        x = run_layer(params, x)
    return x


@pytest.mark.parametrize(
    "act", [jnp.tanh, jax.nn.relu, lambda x: 2 * x, functools.partial(jnp.add, 1)]
)
def test_parameters_with_functions_in_their_structure_do_not_travel(act):
    layer = Layer(0.5 * np.eye(3, dtype=np.float32), act)
    batched = eb.batch(deep, params=layer)
    recorded = eb.grain.RecordBatch(batched)([2, 1])
    travelled = pickle.loads(pickle.dumps(recorded))
    assert travelled.params_spec is None
    plan = eb.grain.PlanBatch(batched)(travelled).plan
    expected = [deep(layer, count) for count in (2, 1)]
    np.testing.assert_allclose(batched.apply(layer, plan), expected, rtol=1e-6)


@pytest.mark.parametrize("travels", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 2),
        (1, True),
        ("a", "b"),
        (("a", 1.0), ("a", 2.0)),
        ({"rate": 0.1}, {"rate": 0.2}),
        (jnp.tanh, jnp.sin),
        (np.dtype("float32"), np.dtype("float16")),
    ],
)
def test_other_static_fields_are_refused(before, after, travels):
    """A model may loop over them or branch on them."""
    weights = 0.5 * np.eye(3, dtype=np.float32)
    batched = eb.batch(deep_or_not, params=Layer(weights, Static(before)))
    recorded = eb.grain.RecordBatch(batched)([2, 1])
    if travels:
        recorded = pickle.loads(pickle.dumps(recorded))
    assert eb.grain.PlanBatch(batched)(recorded).instances == 2
    other = eb.batch(deep_or_not, params=Layer(weights, Static(after)))
    with pytest.raises(eb.PlanError, match="what is no array"):
        eb.grain.PlanBatch(other)(recorded)


@dataclass(frozen=True, eq=False)
class Static:
    """A static field that JAX compares by its repr, and pickles by its fields."""

    value: Any

    def __eq__(self, other):
        return repr(self) == repr(other)

    def __hash__(self):
        return hash(repr(self))


@eb.cell
def multiply(weights, x):
    return weights @ x


def deep_or_not(params, count):
    x = np.ones(3, np.float32)
    for _ in range(count):
        x = multiply(params.weights, x)
    return x


def test_functions_are_told_apart_in_one_process_whatever_their_names(params):
    def named_alike(scale):
        return lambda params, tree: [encode(params, tree) for _ in range(scale)]

    one, two = (eb.batch(named_alike(k), params=params) for k in (1, 2))
    recorded = eb.grain.RecordBatch(one)(sample_trees(0, 2))
    with pytest.raises(eb.LoaderError, match="recorded by another model"):
        eb.grain.PlanBatch(two)(recorded)


def test_results_are_those_of_the_model_in_the_order_of_grain(params):
    batched = new_batched(params)
    order = list(grain.MapDataset.source(range(11)).seed(3).shuffle())
    assert order != sorted(order)
    found = list(pipeline(batched))
    assert [each.instances for each in found] == [4, 4, 3]
    results = [batched.apply(params, each.plan)[0] for each in found]
    assert all(len(each) == 4 for each in results)
    assert not np.asarray(results[-1])[~np.asarray(found[-1].mask)].any()
    rows = [
        row
        for batch, result in zip(found, results, strict=True)
        for row in batch.drop_padding(result)
    ]
    for row, k in zip(rows, order, strict=True):
        np.testing.assert_allclose(row, encode(params, Trees(11)[k])[0], atol=1e-5)


def test_processes_of_grain_change_nothing(params):
    here, there = new_batched(params), new_batched(params)
    expected = [arrays(each) for each in pipeline(here)]
    assert [arrays(each) for each in pipeline(there, workers=2)] == expected
    assert here.types.keys == there.types.keys
    assert here.types.avals == there.types.avals


@pytest.mark.parametrize("workers", [0, 2])
def test_a_checkpoint_in_the_midst_of_an_epoch(params, workers):
    batched = new_batched(params)
    items = iter(pipeline(batched, workers))
    next(items)
    state = json.loads(json.dumps(items.get_state()))
    expected = [arrays(each) for each in items]
    assert len(expected) == 2
    again = iter(pipeline(batched, workers))
    again.set_state(state)
    assert [arrays(each) for each in again] == expected


def test_what_else_elements_hold_is_padded_too(params):
    batched = new_batched(params)
    elements = [(tree, k) for k, tree in enumerate(sample_trees(0, 3))]
    record = eb.grain.RecordBatch(
        batched,
        4,
        instance=lambda element: element[0],
        rest=lambda every: np.array([k for _, k in every]),
    )
    batch = eb.grain.PlanBatch(batched)(record(elements))
    assert batch.rest.tolist() == [0, 1, 2, 0]
    assert batch.mask.tolist() == [True, True, True, False]


def test_a_mesh(params):
    sharded = new_batched(params).sharded()
    record, plan = eb.grain.RecordBatch(sharded, 4), eb.grain.PlanBatch(sharded)
    trees = sample_trees(0, 3)
    found = sharded.apply(params, plan(record(trees)).plan)[0][:3]
    np.testing.assert_allclose(found, sharded(params, trees)[0], atol=1e-6)


def test_a_recorder_is_pickled_with_its_model(params):
    batched = new_batched(params)
    record = eb.grain.RecordBatch(batched, instance=word_of)
    plan = eb.grain.PlanBatch(batched)
    elements = [{"word": 1}, {"word": 2}]
    again = pickle.loads(pickle.dumps(record))
    assert arrays(plan(again(elements))) == arrays(plan(record(elements)))
    rule = "plans in the process that trains, .* behind .mp_prefetch"
    with pytest.raises(eb.PickleError, match=rule):
        pickle.dumps(plan)


def test_an_element_that_cannot_be_recorded_is_named(params):
    record = eb.grain.RecordBatch(new_batched(params))
    with pytest.raises(TypeError, match="not iterable") as caught:
        record([1, (2, None)])
    assert "while recording instance 1 of the batch" in caught.value.__notes__


def test_errors(params):
    batched = new_batched(params)
    record, plan = eb.grain.RecordBatch(batched, 1), eb.grain.PlanBatch(batched)
    for call, message in (
        (lambda: eb.grain.RecordBatch(encode), "RecordBatch takes a function made by"),
        (lambda: eb.grain.PlanBatch(encode), "PlanBatch takes a function made by"),
        (lambda: eb.grain.RecordBatch(batched, 0), "pad_to of RecordBatch is a whole"),
        (lambda: eb.grain.RecordBatch(batched, instance=3), "instance of RecordBatch"),
        (lambda: record([]), "a batch needs at least one element but is empty"),
        (lambda: record(5), "a batch must be a list or another iterable of which"),
        (lambda: plan([1, 2]), "PlanBatch takes what RecordBatch returned but this"),
        (lambda: plan(record([1, 2])), "pads results to 1 rows but a batch has 2 inst"),
    ):
        with pytest.raises(eb.LoaderError, match=message):
            call()
    with pytest.raises(eb.PlanError, match="recording needs the shapes"):
        eb.grain.RecordBatch(eb.batch(encode))


def test_a_copy_leaves_the_settings_of_its_process_alone(params):
    with jax.numpy_dtype_promotion("standard"):
        record = eb.grain.RecordBatch(new_batched(params))
    with jax.numpy_dtype_promotion("strict"):
        for copied in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
            assert jax.config.jax_numpy_dtype_promotion == "strict"
            assert copied._settings == record._settings
