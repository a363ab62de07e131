"""Single-device and sharded functions share one protocol and one host pipeline."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from trees import all_states, assert_equal, encode, make_params, sample_trees

import edbatch as eb
from edbatch.policies import Agenda, Depth

SIZES = eb.Sizes(widths=(4, 16))
TREES = sample_trees(3, 5)
MEMBERS = [
    *(
        "model",
        "types",
        "takes_merged",
        "cache_info",
        "compiles",
        "bind",
        "fit",
        "record",
    ),
    *("record_all", "graph", "plan", "apply", "explain", "loader", "__call__"),
]


@pytest.fixture(scope="module")
def params() -> Any:
    return make_params()


@pytest.fixture(params=["one device", "a mesh"])
def function(request: Any, params: Any) -> Any:
    batched = eb.batch(encode, params=params, sizes=SIZES)
    return batched if request.param == "one device" else batched.sharded()


def report_of(plan: Any) -> eb.PlanReport:
    """The report of a plan, or of the first device's plan."""
    return plan.report.shards[0] if hasattr(plan, "shards") else plan.report


def test_both_have_every_member_of_the_protocol(function: Any) -> None:
    named = {name for name in vars(eb.BatchedFunction) if not name.startswith("_")}
    assert named | {"__call__"} == set(MEMBERS)
    for name in MEMBERS:
        member = getattr(eb.BatchedFunction, name)
        own = inspect.getattr_static(type(function), name)
        assert isinstance(own, property) == isinstance(member, property)
        if not isinstance(member, property):
            # Every call that the protocol allows must work on the function.
            parameters = inspect.signature(member).parameters
            taken = inspect.signature(own).parameters
            assert [name for name in taken if name in parameters] == list(parameters)
            more = [each for name, each in taken.items() if name not in parameters]
            assert all(each.default is not each.empty for each in more)


def test_every_member_does_its_part(function: Any, params: Any) -> None:
    assert function.model is encode
    assert function.compiles == function.cache_info.entries == 0
    assert function.fit(TREES).decisions.sample == len(TREES)
    recordings = function.record_all(TREES[:4])
    recordings.append(function.record(TREES[4]))
    graph = function.graph(recordings)
    assert graph.types is function.types and graph.num_instances == 5
    plan = function.plan(recordings)
    expected = [encode(params, each) for each in TREES]
    for found in (function.apply(params, plan), function(params, TREES)):
        for k, each in enumerate(expected):
            assert_equal(jax.tree.map(lambda x, k=k: x[k], found), each)
    assert function.compiles == 2  # the call pads the instances
    assert (function.cache_info.hits, function.cache_info.misses) == (0, 2)
    loader = function.loader(recordings, 5, shuffle=False)
    assert isinstance(loader, eb.Loader)
    (item,) = loader
    assert_equal(function.apply(params, item.plan), function(params, TREES))
    eb.verify(function, params, TREES[:2])
    half = jax.tree.map(lambda each: each.astype(jnp.bfloat16), params)
    assert function.bind(half) is function
    assert function.types is not graph.types


def test_plans_that_come_back_are_those_of_the_same_structure(
    function: Any, params: Any
) -> None:
    first, again = function.plan(TREES), function.plan(TREES)
    other = function.plan(TREES[::-1])
    cached = [report_of(each).cached for each in (first, again, other)]
    assert cached == [False, True, False]
    assert_equal(function.apply(params, again), function.apply(params, first))
    expected = function.apply(params, first)
    backwards = function.apply(params, other)
    assert_equal(jax.tree.map(lambda each: each[::-1], backwards), expected)


def test_values_of_external_inputs_do_not_come_from_the_cache(
    function: Any, params: Any
) -> None:
    for words in ((1, 2), (3, 4)):
        found = function(params, [words])
        assert_equal(jax.tree.map(lambda x: x[0], found), encode(params, words))
    assert function.cache_info.hits == 1


def test_plans_of_another_policy_do_not_come_from_the_cache(function: Any) -> None:
    function.plan(TREES)
    for policy in (Depth(), Agenda()):
        function.policy = policy
        report = report_of(function.plan(TREES))
        assert not report.cached and report.policy == policy.name


def test_both_share_what_was_found_out(params: Any) -> None:
    batched = eb.batch(all_states, params=params, sizes=SIZES)
    sharded = batched.sharded()
    recordings = batched.record_all(TREES)
    assert sharded.types is batched.types is sharded.graph(recordings).types
    sharded.plan(recordings)
    assert sharded.cache_info == batched.cache_info
    # Plans for a mesh and for one device are kept apart, and so are their buckets.
    assert not batched.plan(recordings).report.cached
    state = batched.states.default()
    own = state.planning
    assert len(own.buckets) == len(own.buckets_of(sharded.mesh, sharded.axis)) == 1


def test_functions_of_the_same_mesh_share_its_buckets(params: Any) -> None:
    batched = eb.batch(encode, params=params, sizes=SIZES, cache_bytes=0)
    plans = [batched.sharded().plan(TREES) for _ in range(2)]
    assert plans[0].shards.shape == plans[1].shards.shape
    state, mesh = batched.states.default(), batched.sharded().mesh
    assert len(state.planning.buckets_of(mesh, "data")) == 1
