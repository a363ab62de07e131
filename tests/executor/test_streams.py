"""Tests that several streams on the same arenas give the results of one stream."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noisy_programs import NOISY, sample_noisy
from programs import interpret, make_params, sample_program
from trees import encode, sample_trees
from trees import make_params as make_tree_params

import edbatch as eb
from edbatch.compilation.tier import compiler_options
from edbatch.compiler import OFF
from edbatch.executor.arenas import compiled_copies, new_arenas
from edbatch.executor.loops import Loops
from edbatch.models import get_workload
from edbatch.plan.keys import give_keys
from edbatch.plan.run import take_results
from edbatch.stream.format import find_chunks
from edbatch.stream.stream import Stream, split_stream

KEY = jax.random.key(5)
OPERATIONS = ("source", "word", "join", "split", "widen", "attend", "index")


class Running:
    """Runs streams of plans on the same arenas, and counts compilations."""

    def __init__(self, plan, params, rng=None):
        pools = jax.tree.map(jnp.asarray, plan.pools)
        self.program, self.pools = give_keys(plan.shape.program, pools, rng)
        self.prepared = self.program.pack(params)
        self.compiles = 0

        def run(program, prepared, arenas, pools, stream):
            self.compiles += 1
            return Loops().run(program, prepared, arenas, pools, stream)

        self.jitted = jax.jit(
            run,
            static_argnums=0,
            donate_argnums=2,
            compiler_options=compiler_options(plan) or None,  # as in direct calls
        )
        self.arenas = {}
        self.clear()

    def clear(self):
        """Sets all rows to zero, so that whole arenas can be compared."""
        empty = jax.eval_shape(lambda: new_arenas(self.program))
        self.arenas = {k: jnp.zeros(x.shape, x.dtype) for k, x in empty.items()}

    def __call__(self, stream, program=None):
        before = self.arenas
        self.arenas = self.jitted(
            program or self.program, self.prepared, before, self.pools, stream
        )
        assert all(each.is_deleted() for each in before.values()), "not donated"

    def values(self):
        return {kind: np.asarray(each).tobytes() for kind, each in self.arenas.items()}


def num_chunks(plan):
    program = plan.shape.program
    return len(find_chunks(program.formats(), plan.trips[: plan.num_steps]).loop)


def cuts_of(chunks, seed):
    """Every place for one cut; then two to four random cuts, some at the same place."""
    rng = np.random.default_rng(seed)
    some = [[at] for at in range(chunks + 1)]
    for cuts in (2, 3, 4, 4):
        some.append(sorted(rng.integers(0, chunks + 1, cuts).tolist()))
    return some


def leaves(tree):
    return [np.asarray(each).tobytes() for each in jax.tree.leaves(tree)]


def assert_cut_anywhere(batched, params, minibatch, rng=None, seed=0, tier="fine"):
    plan = batched.plan(minibatch, params=params).in_tier(tier)
    program, stream = plan.shape.program, plan.as_stream()
    running = Running(plan, params, rng)
    running(stream)
    expected = running.values()
    chunks = num_chunks(plan)
    assert chunks > 4
    every = cuts_of(chunks, seed)
    if len(every) > 40:
        every = every[:: len(every) // 40] + every[-4:]
    for cuts in every:
        running.clear()
        parts = split_stream(stream, program.formats(), cuts)
        assert len(parts) == len(cuts) + 1
        for part in parts:
            running(part)
        assert running.values() == expected, f"cut at {cuts} of {chunks}"
    assert running.compiles == 1
    found = take_results(plan.shape.result, plan.rows, running.arenas, running.pools)
    found = plan.shape.result.assemble(found, plan.lengths)
    assert leaves(found) == leaves(batched.apply(params, plan, rng=rng))


REUSE = eb.Planner(reuse="always")
OPTIONS = {
    "default": {},
    "as it is written": {"compiler": OFF},
    "aligned, hoisted": {
        "planner": eb.Planner(layout="aligned"),
        "compiler": eb.Compiler(hoisting="always"),
    },
    "reuse": {"planner": REUSE},
    "reuse, gathered": {
        "planner": REUSE,
        "compiler": eb.Compiler(slices="never", packing="never"),
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_random_programs(options, quick_compiles):
    rng = np.random.default_rng(7)
    minibatch = [sample_program(rng, 14, OPERATIONS) for _ in range(4)]
    sizes = eb.Sizes(widths=(2,))
    batched = eb.batch(interpret, "greedy", sizes=sizes, **options)
    assert_cut_anywhere(batched, make_params(1), minibatch)


@pytest.mark.parametrize(
    ("options", "key"), [("default", None), ("default", KEY), ("reuse", KEY)]
)
def test_random_programs_with_random_numbers(options, key, quick_compiles):
    def model(params, program):
        return interpret(params, program, NOISY)

    rng = np.random.default_rng(3)
    if key is None:
        minibatch = [sample_program(rng, 12, ("maybe_drop", "join")) for _ in range(4)]
    else:
        minibatch = [sample_noisy(rng, 12) for _ in range(4)]
    sizes = eb.Sizes(widths=(2,))
    batched = eb.batch(model, sizes=sizes, **OPTIONS[options])
    assert_cut_anywhere(batched, make_params(2), minibatch, key)


@pytest.mark.parametrize(
    ("name", "options", "tier"),
    [
        ("tree-lstm", "aligned, hoisted", "fine"),
        ("tree-lstm", "aligned, hoisted", "coarse"),
        ("lattice-lstm", "reuse", "fine"),
        ("lattice-lstm", "reuse", "coarse"),
    ],
)
def test_workloads(name, options, tier, quick_compiles):
    workload = get_workload(name, vocabulary_size=30)
    params = workload.init_params(jax.random.key(0), hidden=6)
    minibatch = workload.sample(np.random.default_rng(2), 3)
    sizes = eb.Sizes(widths=(4, 16))
    batched = eb.batch(workload.model, sizes=sizes, **OPTIONS[options])
    assert_cut_anywhere(batched, params, minibatch, tier=tier)


def test_a_cut_that_drops_a_chunk_is_found(quick_compiles):
    """Checks that the comparison can fail: leaving out any chunk changes an arena."""
    params, sizes = make_tree_params(), eb.Sizes(widths=(2,))
    plan = eb.batch(encode, params=params, sizes=sizes).plan([((1, 2), 3), (4, 5)])
    running = Running(plan, params)
    running(plan.as_stream())
    expected, formats = running.values(), plan.shape.program.formats()
    for at in range(num_chunks(plan)):
        running.clear()
        first, _, last = split_stream(plan.as_stream(), formats, [at, at + 1])
        running(first)
        running(last)
        assert running.values() != expected


def moved(stream, loops, program, length):
    """The stream of one program for another that has the same loops and more."""
    trips = np.zeros((len(stream.trips), len(program.loops)), np.int32)
    for p, loop in enumerate(loops):
        trips[:, program.loops.index(loop)] = stream.trips[:, p]
    records = np.zeros(length, np.int32)
    records[: len(stream.records)] = stream.records
    return Stream(records, trips, stream.num_steps)


def test_streams_of_several_programs_share_arenas(quick_compiles):
    """A program of more loops runs in between, on arenas of more rows and kinds."""
    params, sizes = make_tree_params(), eb.Sizes(widths=(2, 4, 16), max_loops=None)
    batched = eb.batch(encode, params=params, sizes=sizes)
    plan = batched.plan([((1, 2), 3), (4, 5)])
    small, stream = plan.shape.program, plan.as_stream()
    large = batched.plan(sample_trees(0, 64)).shape.program
    assert set(small.loops) < set(large.loops)
    rows = dict(large.arena_rows)
    assert all(own < rows[kind] for kind, own in small.arena_rows)
    running = Running(plan, params)
    running.program = replace(small, arena_rows=large.arena_rows)
    running.clear()
    running.arenas[99] = jnp.arange(3.0)
    running(stream)
    expected = running.values()
    chunks = num_chunks(plan)
    for first, last in pairwise(range(chunks + 1)):
        running.clear()
        running.arenas[99] = jnp.arange(3.0)
        parts = split_stream(stream, small.formats(), [first, last])
        running(parts[0])
        length = 2 * len(stream.records)
        running(moved(parts[1], small.loops, large, length), large)
        running(parts[2])
        assert running.values() == expected
    assert running.compiles == 2


@pytest.mark.parametrize("name", ["tree-lstm", "lattice-lstm"])
def test_a_donated_run_copies_no_arena(name):
    workload = get_workload(name, vocabulary_size=30)
    params = workload.init_params(jax.random.key(0), hidden=8)
    sizes = eb.Sizes(widths=(4, 16))
    batched = eb.batch(workload.model, params=params, sizes=sizes)
    plan = batched.plan(workload.sample(np.random.default_rng(2), 3))
    program = plan.shape.program

    def copies(**options):
        run = jax.jit(Loops().run, static_argnums=0, **options)
        arenas = jax.eval_shape(lambda: new_arenas(program))
        lowered = run.lower(
            program, program.pack(params), arenas, plan.pools, plan.as_stream()
        )
        return compiled_copies(lowered.compile(), program)

    assert copies(donate_argnums=2) == []
    assert len(copies()) >= len(program.arena_rows)  # inputs stay unchanged


def test_cuts_out_of_order_are_refused(quick_compiles):
    params = make_tree_params()
    plan = eb.batch(encode, params=params).plan([((1, 2), 3)])
    formats = plan.shape.program.formats()
    for cuts in ([2, 1], [-1], [num_chunks(plan) + 1]):
        with pytest.raises(AssertionError, match="cuts ascend from 0"):
            split_stream(plan.as_stream(), formats, cuts)
