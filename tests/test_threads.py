"""Threads that record, plan and run with one batched function."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest
from trees import all_states, assert_equal, encode, make_params, sample_trees

import edbatch as eb
from edbatch.instance_results import split_instances

SIZES = eb.Sizes(widths=(4, 16))


def in_threads(work, count):
    """Calls ``work(k)`` in a thread for each k."""
    threads = [threading.Thread(target=work, args=(k,)) for k in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


class Slow(list):
    """A list that lets other threads run before it grows."""

    def append(self, value):
        threading.Event().wait(0.002)
        super().append(value)


def test_plans_are_made_in_other_threads():
    params = make_params()
    batched = eb.batch(all_states, params=params, sizes=SIZES)
    minibatches = [sample_trees(seed, 4) for seed in range(8)]
    plans = [None] * len(minibatches)

    def work(k):
        plans[k] = batched.plan(minibatches[k])

    in_threads(work, 8)
    for trees, plan in zip(minibatches, plans, strict=True):
        found = split_instances(batched.apply(params, plan), 4)
        for own, tree in zip(found, trees, strict=True):
            assert_equal(own, all_states(params, tree))


def test_threads_that_record_at_once_share_types():
    @eb.cell
    def double(params, x):
        return params * x

    batched = eb.batch(lambda params, x: double(params, x), params=jnp.float32(2))
    batched.types.kinds.avals, batched.types.types = Slow(), Slow()
    vectors = [np.arange(1 + k % 20, dtype=np.float32) for k in range(80)]
    graphs = [None] * 80
    start = threading.Barrier(4)

    def work(first):
        start.wait()
        for k in range(first, 80, 4):
            graphs[k] = batched.record(vectors[k])

    in_threads(work, 4)
    assert len(batched.types) == len(batched.types.avals) == 20
    for vector, graph in zip(vectors, graphs, strict=True):
        ((kind, pool),) = graph.externals.items()
        assert batched.types.avals[kind].shape == vector.shape
        np.testing.assert_array_equal(pool[0], vector)
        assert batched.types.types[graph.node_type[0]].external_kinds == (kind,)


def test_a_plan_is_run_while_other_shapes_are_bound():
    batched = eb.batch(encode, params=make_params(), sizes=SIZES)
    plan = batched.plan([(1, 2)])

    class Locked(dict):
        def values(self):
            assert states._lock.locked()
            return super().values()

    states = batched.states
    states._states = Locked(states._states)
    assert batched.apply(make_params(), plan)[0].shape == (1, 4)


def test_a_cell_that_the_model_calls_in_another_thread():
    def model(params, tree):
        found = []

        def call():
            try:
                found.append(encode(params, tree))
            except eb.RecordingError as error:
                found.append(error)

        in_threads(lambda _: call(), 1)
        raise found[0]

    with pytest.raises(eb.RecordingError, match="usually in a thread that the model"):
        eb.batch(model)(make_params(), [(1, 2)])
