"""Options and arguments of a wrong type raise an error of edbatch in one sentence."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import encode, make_params

import edbatch as eb
from edbatch.arguments import list_of
from edbatch.policies import (
    BeamSearch,
    BestOfHeuristics,
    Greedy,
    load_costs,
    train_policy,
)
from edbatch.schedule.examples import chain

ODD: tuple[Any, ...] = (
    *("5", "x" * 10**6, b"x", None, True, -1, 1.5, float("nan"), 10**400),
    *([], {}, {"a": 1}, (1,), object(), print, Greedy),
)
NUMBERS = (int, float)


def refused(make: Any, *right: Any) -> None:
    """Checks that every odd value except `right` is refused in one sentence."""
    for value in ODD:
        if any(value is each or type(value) is each for each in right):
            continue
        with pytest.raises(eb.EdbatchError) as caught:
            make(value)
        assert len(str(caught.value)) <= 400, value
        assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def params() -> Any:
    return make_params()


@pytest.fixture(scope="module")
def batched(params: Any) -> eb.Batched:
    return eb.batch(encode, params=params)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("policy", ()),
        ("sizes", (None,)),
        ("cache_bytes", (int,)),
        ("search", NUMBERS),
        ("guard", (bool,)),
        ("costs", (None,)),
        ("planner", (None,)),
        ("compiler", (None,)),
    ],
)
def test_options_of_batch(name: str, right: tuple[Any, ...]) -> None:
    refused(lambda value: eb.batch(encode, **{name: value}), *right)


def test_the_sentence_says_rule_value_and_cause() -> None:
    for name, value, message in (
        (
            "search",
            "5",
            r"milliseconds, 0 or more, or an eb.Search\(...\), but this is",
        ),
        ("costs", 3, "costs are a file of .*, but here they are int; give the file"),
        (
            "cache_bytes",
            "x",
            "cache_bytes of eb.batch is a whole number, 0 or more, but this is 'x', of"
            " type str; usually a string from a file or a command line",
        ),
        ("cache_bytes", float("nan"), "or more, but this is nan; give another"),
        ("guard", "no", "guard of eb.batch is True or False but this is 'no', of type"),
        ("sizes", (8, 64), r"an eb.Sizes\(...\), or left out, but this is \(8, 64\)"),
        ("planner", "aligned", "an eb.Planner.*, but this is 'aligned', of type str"),
    ):
        with pytest.raises(eb.EdbatchError, match=message):
            eb.batch(encode, **{name: value})


@pytest.mark.parametrize("name", ["chunk_overhead", "headroom", "max_waste"])
def test_numbers_of_sizes(name: str) -> None:
    refused(lambda value: eb.Sizes(**{name: value}), float)
    with pytest.raises(
        eb.PlanError, match=f"of Sizes the option {name} is a finite nu"
    ):
        eb.Sizes(**{name: "5"})


def test_widths_of_sizes() -> None:
    refused(lambda value: eb.Sizes(widths=value), tuple)
    for widths in ("88", ["8"], [8.0], [True], [0], [10**9]):
        with pytest.raises(eb.PlanError, match="width"):
            eb.Sizes(widths=widths)  # type: ignore[arg-type]
    assert eb.Sizes(widths=np.array([64, 8])).widths == (8, 64)  # type: ignore[arg-type]
    with pytest.raises(
        eb.PlanError, match="the cost of a chunk must be 0 or more rows"
    ):
        eb.Sizes(chunk_overhead=-1)


@pytest.mark.parametrize("name", ["slices", "packing", "hoisting", "remat"])
def test_options_of_compiler(name: str) -> None:
    refused(lambda value: eb.Compiler(**{name: value}))


def test_options_of_planner() -> None:
    refused(lambda value: eb.Planner(layout=value))
    refused(lambda value: eb.Planner(reuse=value))
    refused(lambda value: eb.Planner(effort=value), None, int)


def test_options_of_search() -> None:
    refused(lambda value: eb.Search(milliseconds=value), float, int)
    refused(lambda value: eb.Search(width=value), None, int)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "search_ms",
            5,
            "the option 'search_ms' has moved; write search= and",
        ),
        ("compilation_cache", "x", r"call eb\.use_compilation_cache\(folder\) once"),
    ],
)
def test_old_names_of_batch(name: str, value: Any, message: str) -> None:
    with pytest.raises(eb.EdbatchError, match=message):
        eb.batch(encode, **{name: value})
    with pytest.raises(TypeError, match="unexpected keyword argument 'serch'"):
        eb.batch(encode, serch=5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *(
            (name, (bool,))
            for name in ("shuffle", "group_by_size", "drop_last", "keep")
        ),
        *((name, (int,)) for name in ("seed", "prefetch", "threads", "workers")),
        ("state", (None,)),
    ],
)
def test_options_of_loader(batched: Any, name: str, right: tuple[Any, ...]) -> None:
    refused(lambda value: eb.Loader(batched, [(0, 1)], 1, **{name: value}), *right)


def test_arguments_of_loader(batched: Any) -> None:
    refused(lambda value: eb.Loader(value, [(0, 1)], 1))
    refused(lambda value: eb.Loader(batched, value, 1), tuple)
    refused(lambda value: eb.Loader(batched, [(0, 1)], value), int)
    loader = eb.Loader(batched, [(0, 1)], 1)
    refused(loader.restore)
    refused(lambda value: next(loader.epochs(value), None), None, int)


def test_what_is_no_list_of_instances(batched: Any, params: Any) -> None:
    refused(batched.plan, tuple)
    refused(batched.graph, tuple)
    refused(lambda value: batched(params, value), tuple)
    refused(lambda value: batched.record_all(value), tuple, list)
    refused(lambda value: eb.verify(batched, params, value), tuple)
    sharded = batched.sharded()
    refused(sharded.plan, tuple)
    refused(lambda value: sharded(params, value), tuple)
    with pytest.raises(
        eb.PlanError,
        match="a minibatch must be a list or another iterable of which each element is"
        " an instance, but this is None, of type NoneType; usually an instance by"
        r" itself, .*; write \[",
    ):
        batched(params, None)


def test_a_plan_is_no_minibatch(batched: Any, params: Any) -> None:
    sharded = batched.sharded()
    plan = batched.plan([(0, 1)])
    run = (
        r"a list of instances but this is a Plan; run a plan by \.apply\(params, plan\)"
    )
    for call in (batched.plan, batched.graph, sharded.plan):
        with pytest.raises(eb.PlanError, match=run):
            call(plan)
    for function in (batched, sharded):
        with pytest.raises(eb.PlanError, match=run):
            function(params, plan)
    with pytest.raises(eb.PlanError, match=run):
        eb.verify(batched, params, plan)
    with pytest.raises(eb.PlanError, match="this is a ShardedPlan; run a plan by"):
        sharded(params, sharded.plan([(0, 1)]))


def test_what_is_a_list() -> None:
    values = (
        range(2),
        iter([0, 1]),
        {0, 1},
        np.arange(2),
        jnp.arange(2),
        {0: 0, 1: 1}.keys(),
    )
    for value in values:
        assert [int(each) for each in list_of(eb.PlanError, "x", value)] == [0, 1]
    for value in (np.array(3), jnp.array(3)):
        with pytest.raises(eb.PlanError, match="x must be a list or another"):
            list_of(eb.PlanError, "x", value)

    def faulty():
        yield 1
        raise TypeError("of the user")

    with pytest.raises(TypeError, match="of the user"):
        list_of(eb.PlanError, "x", faulty())


def test_parameters_that_are_none(batched: Any, params: Any) -> None:
    plan = batched.plan([(0, 1)])
    for value in ("x", object(), print, [params, "x"], np.array(["a"])):
        for function in (
            batched.bind,
            lambda own: eb.batch(encode, params=own),
            lambda own: batched(own, [(0, 1)]),
            lambda own: batched.apply(own, plan),
            lambda own: eb.verify(batched, own, [(0, 1)]),
        ):
            with pytest.raises(
                eb.PlanError,
                match=r"parameters are a pytree of arrays and numbers but a leaf of it"
                " is .*, of type .*; usually a setting or a function among them; leave"
                " .*; of an Equinox module pass eqx.filter",
            ):
                function(value)


def test_a_dataclass_that_jax_does_not_look_into(params: Any) -> None:
    @dataclass
    class Params:
        own: Any

    with pytest.raises(eb.PlanError, match=r"dataclass Params, .*register_dataclass"):
        eb.batch(encode, params=Params(params))
    registered = jax.tree_util.register_dataclass(Params, ["own"], [])
    assert eb.batch(lambda own, x: encode(own.own, x), params=registered(params))


def test_keys_beside_parameters(params: Any) -> None:
    with_key = params | {"key": jax.random.key(0)}
    assert eb.batch(encode, params=with_key).plan([(0, 1)])


def test_arguments_of_verify(batched: Any, params: Any) -> None:
    minibatch = [(0, 1)]
    refused(lambda value: eb.verify(value, params, minibatch))
    for name, right in (("gradients", (bool,)), ("seed", ()), ("tolerance", (None,))):
        refused(
            lambda value, name=name: eb.verify(
                batched, params, minibatch, **{name: value}
            ),
            *(*right, int, float) if name == "tolerance" else (*right, int),
        )


def test_paths_of_files() -> None:
    refused(eb.load_policy)
    refused(load_costs)
    refused(eb.use_compilation_cache, str, None)


def test_options_of_cell() -> None:
    def function(children: Any, mask: Any) -> Any:
        return children

    refused(eb.cell, None, *map(type, (print, Greedy)))
    refused(lambda value: eb.cell(padded=value)(function), list)
    refused(lambda value: eb.cell(static=value)(function), list)
    refused(lambda value: eb.cell(lengths=value)(function), tuple)
    refused(lambda value: eb.cell(name=value)(function), None, str)
    assert eb.cell(padded=["children"], lengths=(np.int64(4),))(function)


def test_policies_around_policies() -> None:
    refused(BestOfHeuristics)
    refused(BeamSearch)
    refused(lambda value: BestOfHeuristics(Greedy(), value), None)
    refused(lambda value: BeamSearch(Greedy(), costs=value), None)
    refused(lambda value: BeamSearch(Greedy(), budget_ms=value), float, int)
    for budget_ms in (-1, 0, float("nan")):
        with pytest.raises(eb.PolicyError, match="milliseconds above 0 but this is"):
            BeamSearch(Greedy(), budget_ms=budget_ms)
    refused(lambda value: BeamSearch(Greedy(), width=value), None, int)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *((name, (int,)) for name in ("trials", "n_step", "generations", "patience")),
        *((name, (int, float)) for name in ("alpha", "learning_rate", "epsilon")),
        *((name, ()) for name in ("graphs", "held_out", "encoding")),
        ("seed", (int,)),
        ("costs", (None,)),
    ],
)
def test_arguments_of_training(name: str, right: tuple[Any, ...]) -> None:
    small = {"graphs": [chain("ab")], "held_out": [chain("ab")], "trials": 1}
    refused(lambda value: train_policy(**(small | {name: value})), *right)


def test_numbers_of_devices() -> None:
    refused(eb.use_cpu_devices, None, int)
    refused(lambda value: eb.gradient_memory(value))


def test_a_file_of_numpy_is_no_pytree(tmp_path):
    np.savez(tmp_path / "params.npz", w=np.float32(2))
    scale = eb.batch(eb.cell(lambda params, x: params["w"] * x))
    with np.load(tmp_path / "params.npz") as params:
        with pytest.raises(eb.errors.PlanError, match=r"a NpzFile, .*dict\(params\)"):
            scale(params, [np.float32(3)])
        assert scale(dict(params), [np.float32(3)]).tolist() == [6]
