"""Tests that a table shared by threads numbers every kind and type once."""

import threading
from functools import partial

import numpy as np

import edbatch as eb
from edbatch.graph.type_table import TypeTable

LIMIT_S = 30


class Slow(list):
    """A list that lets other threads run before it grows."""

    def append(self, value):
        threading.Event().wait(0.01)
        super().append(value)


def in_threads(calls):
    barrier = threading.Barrier(len(calls), timeout=LIMIT_S)

    def run(call):
        barrier.wait()
        call()

    threads = [threading.Thread(target=run, args=(each,)) for each in calls]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def test_kinds_met_by_several_threads_at_once_are_told_apart():
    table = TypeTable(None)
    table.kinds.avals = Slow()
    found = {}

    def ask(n):
        found[n] = table.kinds.number((n,), np.float32)

    in_threads([partial(ask, n) for n in (1, 2, 3, 1, 2, 3)])
    assert sorted(found.values()) == [0, 1, 2]
    assert {n: table.avals[kind].shape for n, kind in found.items()} == {
        n: (n,) for n in (1, 2, 3)
    }


@eb.cell
def add(params, number):
    return params + number


@eb.cell
def negate(value):
    return -value


def negated(params, times):
    value = add(params, 1.0)
    for _ in range(times):
        value = negate(value)
    return value


def test_the_keys_are_one_tuple_until_a_type_is_added():
    batched = eb.batch(negated, params=1.0)

    def keys(times):
        return batched.graph([times]).structure.type_keys

    first = keys(0)
    assert keys(0) is first
    more = keys(2)
    assert [key.cell for key in more] == ["add", "negate"]
    assert more[:1] == first
    assert keys(1) is more


def test_what_is_made_of_types_may_be_none():
    table, made = eb.batch(negated, params=1.0).graph([0]).types, []

    def make():
        made.append(None)

    assert table.derived("key", make) is table.derived("key", make) is None
    assert len(made) == 1
