"""Types of one cell that share no batch, and why."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.explain.facts import REASONS
from edbatch.explain.fixes import fix_of
from edbatch.models import get_workload

VECTOR = np.ones(3, np.float32)


def apart(model, instances, params=None):
    batched = eb.batch(model, params={} if params is None else params)
    return batched.explain(instances).apart


@eb.cell
def scale(x):
    return x * 2.0


@eb.cell
def size(x):
    return jnp.sum(x, dtype=jnp.float32)


@eb.cell
def start():
    return jnp.zeros(3)


def test_dtypes():
    [found] = apart(
        lambda params, x: size(x), [VECTOR, VECTOR.astype(np.float16), VECTOR]
    )
    assert (found.reason, found.argument) == ("dtype", "x")
    assert set(found.values) == {"float32", "float16"}
    assert (found.nodes, found.batches, found.batches_together) == (3, 2, 1)
    assert "one dtype" in found.fix


def test_shapes():
    [found] = apart(lambda params, x: size(x), [VECTOR, np.ones(5, np.float32)])
    assert (found.reason, found.argument) == ("shape", "x")
    assert set(found.values) == {"[3]", "[5]"}


def test_list_lengths():
    @eb.cell
    def total(parts):
        return sum(parts)

    def model(params, count):
        return total([scale(VECTOR) for _ in range(count)])

    [found] = apart(model, [1, 2, 3, 3])
    assert (found.cell, found.reason, found.argument) == (
        "total",
        "list length",
        "parts",
    )
    assert found.values == ("1", "2", "3")
    assert (found.nodes, found.batches, found.batches_together) == (4, 3, 1)
    assert "padded=('parts',)" in found.fix

    @eb.cell(padded=("parts",))
    def padded(parts, mask):
        return (parts * mask[:, None]).sum(0)

    def mended(params, count):
        return padded([scale(VECTOR) for _ in range(count)])

    [found] = apart(mended, [1, 2, 2])
    assert (found.reason, found.values) == ("padded length", ("1", "2"))
    assert "lengths=(K,)" in found.fix


def test_parameter_paths():
    @eb.cell
    def apply(weight, x):
        return weight @ x

    def model(params, which):
        return apply(params[which], scale(VECTOR))

    params = {"a": jnp.eye(3), "b": jnp.eye(3)}
    [found] = apart(model, ["a", "b", "b"], params)
    assert (found.reason, found.argument) == ("parameters", "weight")
    assert found.values == ("a", "b")
    assert "stack them in one array" in found.fix


def test_static_arguments():
    @eb.cell(static=("n",))
    def power(x, n):
        return x**n

    [found] = apart(lambda params, n: power(VECTOR, n), [2, 3, 3, 2.0])
    assert (found.reason, found.argument) == ("static argument", "n")
    assert set(found.values) == {"2", "3", "2.0"}
    assert (found.batches, found.batches_together) == (3, 1)


def test_a_first_state_that_comes_from_outside():
    """A cell's first state is an input, every later one the output of a cell."""

    @eb.cell
    def step(state):
        return state + 1

    def model(params, length, first=lambda: VECTOR):
        state = first()
        for _ in range(length):
            state = step(state)
        return state

    [found] = apart(model, [3, 4])
    assert (found.reason, found.argument) == ("source", "state")
    assert set(found.values) == {"an input", "a cell's output"}
    assert "let a cell make" in found.fix
    assert apart(lambda params, length: model(params, length, start), [3, 4]) == ()


def test_structures():
    @eb.cell
    def keep(x):
        return jax.tree.leaves(x)[0]

    def model(params, wide):
        return keep({"a": VECTOR, "b": VECTOR} if wide else {"a": VECTOR})

    [found] = apart(model, [True, False])
    assert (found.reason, found.argument) == ("structure", "x")


def test_cells_that_are_made_anew():
    def model(params, x):
        @eb.cell
        def inner(x):
            return x + 1

        return inner(x)

    [found] = apart(model, [VECTOR, VECTOR])
    assert (found.reason, found.argument) == ("definition", "")
    assert "define 'inner' once" in found.fix


def test_several_aspects_at_once():
    @eb.cell(static=("n",))
    def power(x, n):
        return jnp.sum(x**n, dtype=jnp.float32)

    def model(params, instance):
        return power(*instance)

    half = VECTOR.astype(np.float16)
    [found] = apart(model, [(VECTOR, 2), (half, 3)])
    assert found.reason == "static argument"
    assert found.also == ("dtype of 'x'",)
    assert (found.batches, found.batches_together) == (2, 1)
    by_one = apart(model, [(VECTOR, 2), (half, 3), (VECTOR, 3)])
    assert {each.reason for each in by_one} == {"static argument", "dtype"}
    assert all(len(each.types) == 2 and not each.also for each in by_one)


def test_other_cells_are_not_compared():
    @eb.cell
    def other(x):
        return jnp.sum(x, dtype=jnp.float32) * 3.0

    def model(params, x):
        return size(x) if x.dtype == np.float32 else other(x)

    assert apart(model, [VECTOR, VECTOR.astype(np.float16)]) == ()


def test_types_that_the_minibatch_lacks_are_left_out():
    batched = eb.batch(lambda params, x: size(x), params={})
    half = VECTOR.astype(np.float16)
    assert len(batched.explain([VECTOR, half]).apart) == 1
    assert batched.explain([VECTOR]).apart == ()


@pytest.mark.parametrize("name", ["lattice-lstm", "tree-lstm"])
def test_ready_models(name):
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(0), 4)
    instances = workload.sample(np.random.default_rng(0), 16)
    found = apart(workload.model, instances, params)
    assert {each.reason for each in found} == (
        {"padded length"} if name == "lattice-lstm" else set()
    )


def test_it_is_shown():
    report = eb.batch(lambda params, x: size(x), params={}).explain(
        [VECTOR, VECTOR.astype(np.float16)]
    )
    [found] = report.apart
    sentence = str(found)
    assert sentence.startswith("2 types of 'size' differ in dtype of 'x': ")
    assert "2 nodes in 2 batches, as one type 1" in sentence
    assert found.to_json()["types"] == ["size/0", "size/0~1"]
    assert "Types of one cell that share no batch" in str(report)
    assert max(map(len, str(report).splitlines())) <= 80
    assert report.to_json()["apart"] == [found.to_json()]


def test_every_reason_has_a_fix():
    from edbatch.explain.facts import Aspect, Facts

    for reason in REASONS:
        fix = fix_of(Aspect(reason, "x"), [Facts(0, "cell", "cell")])
        assert fix and "{" not in fix
