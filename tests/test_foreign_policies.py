"""Schedules returned by users' policies are checked."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import edbatch as eb
from edbatch.policies import (
    Agenda,
    AgendaRemaining,
    BeamSearch,
    BestOfHeuristics,
    Depth,
    Greedy,
    StateMachine,
)
from edbatch.schedule import Schedule


@eb.cell
def start(params, number):
    return params * number


@eb.cell
def step(params, state):
    return params + state


def model(params, steps):
    state = start(params, 1.0)
    for _ in range(steps):
        state = step(params, state)
    return state


class Own:
    """A policy that changes a heuristic's schedule."""

    name = "own"

    def __init__(self, change):
        self.change = change

    def schedule(self, structure):
        return self.change(Greedy().schedule(structure))


def reverse(found):
    parts = np.split(found.order, found.batch_start[1:-1])[::-1]
    starts = np.cumsum([0, *map(len, parts)]).astype(np.int32)
    return Schedule(np.concatenate(parts), starts, found.batch_type[::-1], "own")


def drop(found):
    end = found.batch_start[-2]
    return Schedule(
        found.order[:end], found.batch_start[:-1], found.batch_type[:-1], "own"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (reverse, r"breaks a rule \(node .* runs before its operand"),
        (drop, r"breaks a rule \(.* nodes are scheduled but the graph has"),
        (
            lambda found: replace(found, order=found.order.tolist()),
            r"a schedule whose order is \[.*\], of type list; it must be a"
            " one-dimensional array",
        ),
        (
            lambda found: replace(found, batch_start=found.batch_start * 1.0),
            r"whose batch_start is array\(.*\), of type ndarray; it must be a",
        ),
        (lambda found: None, "returned NoneType, which is not a schedule; return"),
    ],
)
def test_invalid_schedules_are_refused(change, text):
    batched = eb.batch(model, params=jnp.float32(1), policy=Own(change))
    with pytest.raises(eb.PolicyError, match=text):
        batched.plan([1, 2, 3])


def test_a_guard_is_looked_through():
    guarded = BestOfHeuristics(Own(reverse))
    batched = eb.batch(model, params=jnp.float32(1), policy=guarded, guard=False)
    with pytest.raises(eb.PolicyError, match="runs before its operand"):
        batched.plan([1, 2, 3])


def test_neither_the_name_of_a_module_nor_a_base_class_is_trusted():
    class Heir(Greedy):
        def schedule(self, structure):
            return reverse(super().schedule(structure))

    Heir.__module__ = "edbatch.policies.heuristics"
    for policy in (Heir(), BestOfHeuristics(Heir())):
        batched = eb.batch(model, policy, params=jnp.float32(1), guard=False)
        with pytest.raises(eb.PolicyError, match="runs before its operand"):
            batched.plan([1, 2, 3])


@pytest.mark.parametrize("policy", [Depth(), Agenda(), AgendaRemaining(), Greedy()])
def test_policies_of_edbatch_are_not_checked(policy, monkeypatch):
    checked = []

    def check(schedule, *_):
        checked.append(1)
        return schedule

    monkeypatch.setattr("edbatch.planning.reject_invalid", check)
    types = eb.batch(model, params=jnp.float32(1)).graph([3]).structure.type_keys
    machine = StateMachine(types, "sort")
    for each in (policy, BestOfHeuristics(machine), BeamSearch(policy, width=1)):
        eb.batch(model, each, params=jnp.float32(1)).plan([1, 2, 3])
    assert not checked
    eb.batch(model, Own(lambda found: found), params=jnp.float32(1)).plan([1, 2])
    assert checked


def test_valid_schedules_run():
    policy = Own(lambda found: found)
    batched = eb.batch(model, params=jnp.float32(1), policy=policy)
    eb.verify(batched, jnp.float32(1), [1, 2, 3])


@pytest.mark.parametrize("dtype", ["u1", "u4", "u8", ">i4", "i8", "i2"])
def test_schedules_of_any_whole_numbers_run(dtype):
    def change(found):
        names = "order", "batch_start", "batch_type"
        arrays = {name: getattr(found, name).astype(dtype) for name in names}
        return replace(found, **arrays)

    batched = eb.batch(model, params=jnp.float32(1), policy=Own(change))
    np.testing.assert_array_equal(batched(jnp.float32(1), [1, 2, 3]), [2, 3, 4])


def test_numbers_that_are_too_large_are_told():
    def change(found):
        return replace(found, order=found.order.astype(np.uint64) + 2**63)

    batched = eb.batch(model, params=jnp.float32(1), policy=Own(change))
    with pytest.raises(eb.PolicyError, match=r"'own' .* order has numbers beyond"):
        batched.plan([1, 2, 3])
