"""Tests pickles of recordings, plans, policies, cells and batched functions."""

import copy
import dataclasses
import functools
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pickled_models
import pytest
from jax import export
from pickled_models import SIZES, gains, loss, negative, of_all_kinds, rescale
from trees import (
    all_states,
    assert_equal,
    encode,
    join,
    leaf,
    make_params,
    sample_trees,
)

import edbatch as eb
from edbatch import policies
from edbatch.graph.type_table import TypeTable
from edbatch.policies import BeamSearch, BestOfHeuristics, MachineState, StateMachine
from edbatch.schedule.examples import tree as example

LIMIT_S = 120


def round_trip(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture(scope="module")
def elsewhere():
    """Calls a module-level function in a spawned process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield lambda function, *args: pool.apply_async(function, args).get(LIMIT_S)


def in_a_new_process(program, folder):
    paths = [os.path.dirname(pickled_models.__file__), os.environ.get("PYTHONPATH", "")]
    subprocess.run(
        [sys.executable, "-P", "-c", f"import pickled_models as m; m.{program}('.')"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=True,
        timeout=LIMIT_S,
    )  # fmt: skip


@pytest.fixture
def take_overs(monkeypatch):
    """The type tables that were taken over, one entry for each time."""
    found = []

    def counted(self, other, own=TypeTable.take_over):
        found.append(other)
        return own(self, other)

    monkeypatch.setattr(TypeTable, "take_over", counted)
    return found


def test_another_process_records_and_plans(elsewhere, take_overs):
    params, trees = make_params(), sample_trees(0, 6)
    kept, plan, fresh_plan = elsewhere(pickled_models.record_and_plan, trees)
    batched = eb.batch(encode, sizes=SIZES)
    expected = eb.batch(encode, sizes=SIZES)(params, trees)
    assert_equal(batched(params, kept), expected)
    assert_equal(batched.apply(params, batched.plan(kept)), expected)
    assert_equal(batched.apply(params, plan), expected)
    assert_equal(jax.jit(batched.apply)(params, fresh_plan), expected)
    assert len(take_overs) == 1  # the one table that all of them came with
    assert kept[0].types is plan.shape.program.types
    own = batched.record_all(trees)
    assert len(batched.types) == 2
    mixed = [*kept[:3], *own[3:]]
    assert_equal(batched(params, mixed), expected)
    assert_equal(batched.sharded()(params, mixed), expected)
    assert len(take_overs) == 1
    loader = eb.Loader(batched, kept, 3, shuffle=False)
    hidden = jnp.concatenate([batched.apply(params, each.plan)[0] for each in loader])
    assert_equal(hidden, expected[0])


def test_recordings_of_another_model(elsewhere):
    params = make_params()
    kept, plan, _ = elsewhere(pickled_models.record_and_plan, sample_trees(1, 4))
    batched = eb.batch(all_states, params=params, sizes=SIZES)
    with pytest.raises(eb.PlanError, match=r"trees\.encode and not trees\.all_states"):
        batched.plan(kept)
    with pytest.raises(eb.PlanError, match="the plan was made by another model"):
        batched.apply(params, plan)


@pytest.mark.parametrize("hoisting", ["never", "always"])
def test_plans_with_divided_cells(elsewhere, hoisting):
    params, trees = make_params(), sample_trees(2, 4)
    compiler = eb.Compiler(hoisting="always")
    kept, plan, _ = elsewhere(pickled_models.record_and_plan, trees, compiler)
    own = eb.batch(
        encode, params=params, sizes=SIZES, compiler=eb.Compiler(hoisting=hoisting)
    )
    expected = own(params, trees)
    assert_equal(own.apply(params, plan), expected)
    assert_equal(own(params, kept), expected)
    gradient = jax.grad(functools.partial(loss, own))
    assert_equal(gradient(params, plan), gradient(params, own.plan(trees)))


@pytest.mark.parametrize("first", [None, (1, 2, 3), (0.5,)])
def test_types_that_were_met_in_another_order(elsewhere, first):
    minibatch = [(1, 2, 3), (0.5,)]
    plan, kept = elsewhere(pickled_models.plan_kinds, minibatch)
    batched = eb.batch(of_all_kinds, params=gains(), sizes=SIZES)
    if first:
        batched.record(first)
    adoption = batched.states.of_types(kept[0].types).adoption(kept[0].types)
    are_alike = np.array_equal(adoption.type_ids, range(len(adoption.type_ids)))
    assert are_alike == (first != (0.5,))
    types = len(batched.types)
    for rng in (None, jax.random.key(0)):
        expected = batched(gains(), minibatch, rng=rng)
        assert_equal(batched.apply(gains(), plan, rng=rng), expected)
        assert_equal(batched(gains(), kept, rng=rng), expected)
        assert_equal(batched(gains(), [kept[0], minibatch[1]], rng=rng), expected)
    assert len(batched.types) == types == len(kept[0].types)


def test_a_batched_function_goes_on_in_another_process(elsewhere, take_overs):
    params, trees = make_params(), sample_trees(3, 5)
    batched = eb.batch(encode, "greedy", params=params, sizes=SIZES)
    expected = batched(params, trees)
    run = jax.jit(batched.apply)
    run(params, batched.plan(trees))
    batched.apply(params, batched.plan(trees))
    compiles = batched.compiles
    plan, kept = elsewhere(pickled_models.plan_with, batched, trees)
    # The other process met nothing new: types, sizes and programs are the same.
    assert all(each.types is batched.types for each in kept)
    assert plan.shape == batched.plan(trees).shape
    assert_equal(batched.apply(params, plan), expected)
    assert_equal(run(params, plan), expected)
    assert batched.compiles == compiles
    assert not take_overs


def test_recordings_on_disk(tmp_path):
    params, trees = make_params(), sample_trees(4, 4)
    batched = eb.batch(encode, params=params, sizes=SIZES)
    (tmp_path / "recordings").write_bytes(pickle.dumps(batched.record_all(trees)))
    in_a_new_process("run_from_disk", tmp_path)
    with np.load(tmp_path / "result.npz") as found:
        assert_equal(
            tuple(found.values()), tuple(map(np.asarray, batched(params, trees)))
        )


def test_exported_functions_run_in_another_process(tmp_path):
    pytest.importorskip("flatbuffers", reason="jax.export writes files by it")
    params, trees = make_params(), sample_trees(5, 4)
    batched = eb.batch(encode, params=params, sizes=SIZES)
    plan = batched.plan(trees)
    value = jax.jit(functools.partial(loss, batched))
    blob = export.export(value)(params, plan).serialize(vjp_order=1)
    again = export.deserialize(blob)
    assert_equal(again.call(params, plan), value(params, plan))
    assert again.in_tree == jax.tree.structure(((params, plan), {}))
    (tmp_path / "exported").write_bytes(blob)
    (tmp_path / "plan").write_bytes(pickle.dumps(plan))
    in_a_new_process("run_exported", tmp_path)
    expected = jax.value_and_grad(value)(params, plan)
    with np.load(tmp_path / "result.npz") as found:
        for own, other in zip(found.values(), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


def test_exported_functions_return_ragged_lists():
    pytest.importorskip("flatbuffers", reason="jax.export writes files by it")
    params = make_params()
    batched = eb.batch(all_states, params=params, sizes=SIZES)
    plan = batched.plan([(1, 2), 3])
    exported = export.export(jax.jit(batched.apply))(params, plan)
    found = export.deserialize(exported.serialize()).call(params, round_trip(plan))
    assert isinstance(found, eb.Ragged)
    assert_equal(found, batched.apply(params, plan))


def test_a_pickle_is_read_as_what_this_process_has():
    params, trees = make_params(), sample_trees(6, 3)
    batched = eb.batch(encode, params=params, sizes=SIZES)
    kept, plan = batched.record_all(trees), batched.plan(trees)
    for each in (round_trip(kept[0]), copy.deepcopy(kept[0])):
        assert each.types is batched.types
        assert each.outputs.tree is kept[0].outputs.tree
        np.testing.assert_array_equal(each.node_type, kept[0].node_type)
    for each in (round_trip(plan), copy.deepcopy(plan), copy.copy(plan)):
        assert jax.tree.structure(each) == jax.tree.structure(plan)
        assert_equal(batched.apply(params, each), batched.apply(params, plan))
    assert batched.compiles == 1


def test_copies_of_batched_functions():
    params, trees = make_params(), sample_trees(7, 3)
    batched = eb.batch(encode, example_policy(), params=params, sizes=SIZES)
    expected, kept = batched(params, trees), batched.record_all(trees)
    for each in (copy.copy(batched), copy.deepcopy(batched), round_trip(batched)):
        assert each.compiles == 0
        assert each.cache_info.max_bytes == batched.cache_info.max_bytes
        assert_equal(each(params, trees), expected)
        assert_equal(each(params, kept), expected)
        assert_equal(each.apply(params, batched.plan(trees)), expected)
        assert each.compiles == 2  # with padded instances and without
        each.bind(jax.eval_shape(lambda x: x, make_params(8)))
        assert batched.types.params_spec["join"].shape == (8, 4)
    assert batched.compiles == 1
    # Copies share the states and their plans; a pickle contains no plan.
    assert copy.copy(batched).cache_info == batched.cache_info
    assert batched.cache_info.entries > 0
    assert round_trip(batched).cache_info.entries == 0
    sharded = copy.deepcopy(batched.sharded())
    assert_equal(sharded(params, kept), expected)


def test_a_function_that_was_never_bound():
    found = round_trip(eb.batch(encode, sizes=SIZES))
    with pytest.raises(eb.PlanError, match="needs the shapes of the parameters"):
        found.plan([(1, 2)])
    assert found(make_params(), [(1, 2)])[0].shape == (1, 4)


def test_recordings_of_another_function_of_the_same_model():
    params, trees = make_params(), sample_trees(8, 3)
    one, other = (eb.batch(encode, params=params, sizes=SIZES) for _ in range(2))
    kept, plan = other.record_all(trees), other.plan(trees)
    other.record((1, 2))
    assert_equal(one(params, kept), other(params, trees))
    assert_equal(one.apply(params, plan), other(params, trees))
    assert one.record_all(kept)[0].types is one.types


def test_sizes():
    params = make_params()
    batched = eb.batch(encode, params=params, sizes=SIZES)
    trees = [each for seed in range(200) for each in sample_trees(seed, 5, leaves=20)]
    kept = batched.record_all(trees)
    largest = max(kept, key=lambda each: each.num_nodes)
    assert 35 <= largest.num_nodes <= 40
    largest.structure.depth  # noqa: B018  cached on a recording, not pickled
    assert len(pickle.dumps(largest)) < 5_000
    # Pickled together they contain the types once; the rest is arrays.
    assert len(pickle.dumps(kept)) < 1_000 * len(kept)
    loaded = round_trip(kept)
    assert all(each.types is batched.types for each in loaded)


def test_pickles_of_a_table_that_grows_are_read_as_one_table():
    params = make_params()
    batched = eb.batch(encode, params=params, sizes=SIZES)
    first = pickle.dumps(batched.record(1))
    second = pickle.dumps(batched.record((1, 2)))
    del batched  # as in a process that never had it
    gc.collect()
    one = pickle.loads(first)
    assert len(one.types) == 1
    other = pickle.loads(second)
    assert other.types is one.types and len(one.types) == 2
    assert pickle.loads(first).types is one.types
    # Recording here makes the table this process's own.
    own = eb.batch(encode, params=params, sizes=SIZES)
    assert_equal(own(params, [one, other]), own(params, [1, (1, 2)]))


def test_tables_that_went_apart_are_not_taken_for_each_other():
    params = gains()
    batched = eb.batch(of_all_kinds, params=params, sizes=SIZES)
    batched.record((1,))
    blob = pickle.dumps(batched)
    later = pickle.dumps(batched.record((1, 2)))  # one more type: a list of two
    del batched
    gc.collect()
    other = pickle.loads(blob)
    other.record((1, 2, 3))  # another type with the same number
    found = pickle.loads(later)
    assert found.types is not other.types
    expected = eb.batch(of_all_kinds, sizes=SIZES)(params, [(1, 2)])
    assert_equal(other(params, [found]), expected)


def example_machine():
    graph = example("((ab)cb)c")
    return StateMachine(graph.type_keys, "base", (MachineState((0, 1), 1),))


def example_policy():
    return BestOfHeuristics(BeamSearch(policies.Greedy(), width=2))


@pytest.mark.parametrize(
    "policy",
    [
        policies.Depth(),
        policies.Agenda(),
        policies.Greedy(),
        example_policy(),
        example_machine(),
        *map(policies.get_policy, [f"zoo:{name}" for name in policies.zoo_names()]),
    ],
    ids=lambda each: each.name,
)
def test_policies(policy):
    if isinstance(policy, StateMachine):
        structure = example("((ab)cb)c")
        if policy.types != structure.type_keys:
            structure = None
    else:
        structure = example("((ab)cb)c")
    size = len(pickle.dumps(policy))
    if structure is not None:
        expected = policy.schedule(structure)
        # Its caches of graphs are not pickled.
        assert len(pickle.dumps(policy)) == size
    for each in (round_trip(policy), copy.deepcopy(policy)):
        assert (
            repr(each).partition(" object at")[0]
            == repr(policy).partition(" object at")[0]
        )
        if structure is not None:
            found = each.schedule(structure)
            np.testing.assert_array_equal(found.order, expected.order)
            np.testing.assert_array_equal(found.batch_type, expected.batch_type)


def test_cells_are_pickled_by_name():
    for each in (leaf, join, negative, rescale):
        assert round_trip(each) is each
        assert copy.deepcopy(each) is each and copy.copy(each) is each
    assert round_trip(functools.partial(join, 1)).func is join


def test_cells_that_another_process_cannot_import():
    @eb.cell
    def local(params, x):
        return params * x

    batched = eb.batch(local, params=1.0)
    rule = r"cell 'local' \(tests\.test_pickling\..*\.local\) has none; usually it is"
    for each in (local, batched.record(1.0), batched.plan([1.0]), batched):
        with pytest.raises(eb.PickleError, match=rule):
            pickle.dumps(each)
        with pytest.raises(pickle.PicklingError):
            pickle.dumps(each)
    # Copies within this process need no names.
    kept = copy.deepcopy(batched.record(2.0))
    assert copy.deepcopy(batched)(1.5, [kept]).tolist() == [3.0]


def test_names_that_mean_something_else_when_a_pickle_is_read(monkeypatch):
    blob, recording = (
        pickle.dumps(rescale),
        pickle.dumps(eb.batch(encode, params=make_params()).record((1, 2))),
    )
    monkeypatch.setattr(pickled_models, "rescale", leaf)
    with pytest.raises(eb.PickleError, match="this is a cell of other arguments here"):
        pickle.loads(blob)
    monkeypatch.setattr(pickled_models, "rescale", lambda x: x)
    with pytest.raises(eb.PickleError, match=r"'rescale' .* this is <function .* here"):
        pickle.loads(blob)
    monkeypatch.delattr(pickled_models, "rescale")
    with pytest.raises(eb.PickleError, match=r"cannot be imported here .* importable"):
        pickle.loads(blob)
    main = (
        pickle.dumps(leaf)
        .replace(b"trees", b"__main__")
        .replace(b"\x8c\x05__main__", b"\x8c\x08__main__")
    )
    with pytest.raises(eb.PickleError, match="define the cell in a module that both"):
        pickle.loads(main)
    assert pickle.loads(recording)


def wider(weights, left, right):
    hidden, memory = join.function.__wrapped__(weights, left, right)
    return jnp.stack([hidden, hidden]), memory


def of_another_parameter(weights, left, right):
    return left[0] + weights["gate"], right[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (wider, r"'join' returned other shapes .* than"),
        (of_another_parameter, r"here cell 'join' is another one.*gate.*record again"),
    ],
)
def test_cells_whose_code_was_changed(changed, message):
    batched = eb.batch(encode, params=make_params(), sizes=SIZES)
    blob = pickle.dumps(batched.record((1, 2)))
    del batched
    gc.collect()

    function = join.function
    join.function = functools.wraps(function)(
        lambda *args: changed(*args)  # `wraps` can set its attributes
    )
    try:
        recording = pickle.loads(blob)
        with pytest.raises(eb.PickleError, match=message):
            eb.batch(encode, sizes=SIZES)(make_params(), [recording])
    finally:
        join.function = function


def test_models_and_constants_without_a_name():
    params = make_params()
    with pytest.raises(
        eb.PickleError, match=r"its model, <function .*lambda.* cannot be"
    ):
        pickle.dumps(eb.batch(lambda params, tree: encode(params, tree)))

    class Local(policies.Greedy):
        pass

    with pytest.raises(eb.PickleError, match=r"its policy, .*Local.* cannot be"):
        pickle.dumps(eb.batch(encode, Local()))
    # Recordings need only the names of cells.
    nameless = eb.batch(lambda params, tree: encode(params, tree), params=params)
    assert_equal(nameless(params, [round_trip(nameless.record((1, 2)))]),
                 nameless(params, [(1, 2)]))  # fmt: skip
    constant = eb.batch(with_local_constant, params=jnp.float32(1))
    with pytest.raises(eb.PickleError, match=r"one of cell 'rescale' is <function"):
        pickle.dumps(constant.record(np.ones(2, np.float32)))


def test_parameters_of_a_class_without_a_name():
    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Weights:
        gain: jax.Array

    def model(params, x):
        return rescale(params.gain, x, jnp.tanh, 1.0)

    batched = eb.batch(model, params=Weights(jnp.float32(2)))
    recording = batched.record(np.ones(2, np.float32))
    rule = "structure of the parameters, but this one, of type Weights, cannot be"
    for _ in range(2):
        with pytest.raises(eb.PickleError, match=rule):
            pickle.dumps(recording)
    assert copy.deepcopy(recording).types is batched.types


def with_local_constant(params, x):
    return rescale(params, x, lambda y: y, 1.0)


def test_stand_ins_are_copied_as_they_are_and_not_pickled():
    def model(params, tree):
        assert copy.deepcopy(params) is params and copy.copy(params) is params
        with pytest.raises(eb.PickleError, match="params has no value while the model"):
            pickle.dumps(params)
        state = copy.deepcopy({"state": leaf(params, tree)})["state"]
        with pytest.raises(eb.PickleError, match=r"Handle\(.* is not computed yet"):
            pickle.dumps(state)
        assert not hasattr(params, "__deepcopy_not__")
        return join(params["join"], state, copy.copy(state))

    params = make_params()
    found = eb.batch(model)(params, [1])
    assert_equal(jax.tree.map(lambda x: x[0], found), encode(params, (1, 1)))
    empty = object.__new__(type(eb.batch(encode, params=params).types.params))
    with pytest.raises(AttributeError):
        empty._children  # noqa: B018


def test_devices_are_of_one_process():
    sharded = eb.batch(encode, params=make_params(), sizes=SIZES).sharded()
    plan = sharded.plan([(1, 2)])
    assert copy.deepcopy(plan) is plan
    with pytest.raises(
        eb.PickleError, match="a sharded plan lies on devices of its own"
    ):
        pickle.dumps(plan)
    with pytest.raises(eb.PickleError, match=r"pickle its \.batched, and call"):
        pickle.dumps(sharded)


def test_a_function_that_was_bound_to_another_order_of_keys():
    given = {"b": jnp.float32(0.2), "a": jnp.float32(0.3)}
    listed = {"a": given["a"], "b": given["b"]}
    batched = eb.batch(pickled_models.in_listed_order, params=given)
    batched.bind(listed)
    own, copied = batched(listed, [0.1, 0.2]), round_trip(batched)
    np.testing.assert_array_equal(copied(listed, [0.1, 0.2]), own)
    other = pickled_models.in_listed_order(given, 0.1)
    np.testing.assert_allclose(copied(given, [0.1]), [other], rtol=1e-6)
    assert not np.isclose(other, own[0])
