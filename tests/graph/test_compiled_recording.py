"""Compares compiled recording with Python's, and tests memory and references."""

import copy
import gc
import json
import os
import subprocess
import sys
import tracemalloc
import weakref
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from recorded_graphs import CALLS, FAULTS

import edbatch as eb
from edbatch.graph.call_memory import CallMemory
from edbatch.graph.context import context
from edbatch.graph.parameter_structure import abstract
from edbatch.graph.recorder import Recorder, record
from edbatch.graph.tape import Tape
from edbatch.graph.type_table import TypeTable
from edbatch.models import WORKLOADS

PARAMS = {"w": np.ones((3, 3), np.float32)}
TESTS = Path(__file__).resolve().parents[1]
needs_extension = pytest.mark.skipif(
    not eb.recording_is_compiled(), reason="installed without the extension"
)


@eb.cell
def step(params, x, pair):
    return jnp.tanh(params["w"] @ pair[0] + x), pair[1]


@eb.cell
def first(x):
    return jnp.ones(3) * x, jnp.ones(3)


def chain(params, length):
    state = first(1.0)
    for k in range(length):
        state = step(params, k, state)
    return state[0]


def digests(**environment):
    """The output of `recorded_graphs` in a new process."""
    program = "import recorded_graphs; recorded_graphs.main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TESTS,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_extension
def test_both_record_the_same_graphs_and_errors(quick_compiles):
    compiled, python = digests(), digests(EDBATCH_NO_EXTENSIONS="1")
    assert compiled["compiled"]
    assert not python["compiled"]
    found, expected = compiled["found"], python["found"]
    assert {*WORKLOADS, *CALLS, "shift-reduce", "program 0"} <= {*expected}
    assert sum(name.startswith("fault") for name in expected) == len(FAULTS)
    differing = {name for name in expected if found[name] != expected[name]}
    assert not differing
    assert found.keys() == expected.keys()


def recording(model=chain, params=PARAMS):
    types, memory = TypeTable(abstract(params), model), CallMemory()
    return lambda instances: record(model, types, instances, memory)


def least_growth(run, warm_up):
    """Bytes that `run` leaves allocated: the minimum of three runs.

    Allocations of other threads and earlier tests fall into one of the runs; a leak is
    in each.
    """
    grown = []
    tracemalloc.start()
    try:
        warm_up()
        for _ in range(3):
            start = tracemalloc.get_traced_memory()[0]
            run()
            grown.append(tracemalloc.get_traced_memory()[0] - start)
    finally:
        tracemalloc.stop()
    return min(grown)


def test_recordings_leave_no_memory_behind():
    def model(params, count):
        x = chain(params, count)
        return step(params, array, (x, x)), {"x": x}

    array = np.ones(3, np.float32)
    again = recording(model)
    counted = [array, model, chain, first, step, PARAMS["w"]]

    def many(count):
        for k in range(count):
            again([k % 3])
        gc.collect()

    many(50)
    before = [sys.getrefcount(each) for each in counted]
    grown = least_growth(lambda: many(2_000), lambda: many(50))
    assert grown < 20_000  # a handle per recording would be 96,000
    assert [sys.getrefcount(each) for each in counted] == before


def test_calls_that_fail_leave_no_memory_behind():
    def model(params, count):
        x = chain(params, 1)
        return step(params, [k for k in range(200)] + [x] * 100 + ["no"], (x, x))

    again = recording(model)

    def many(count):
        for _ in range(count):
            with pytest.raises(eb.CellError):
                again([1])
        gc.collect()

    many(5)
    grown = least_growth(lambda: many(25), lambda: many(5))
    assert grown < 10_000  # just the operands of a call take 800 bytes


def test_a_subclass_may_have_a_call_of_its_own():
    class Counting(Recorder):
        def call(self, cell, args, kwargs):
            self.counted.append(cell)
            return super().call(cell, args, kwargs)

    types = TypeTable(abstract(PARAMS), chain)
    recorder = Recorder(Tape(types), CallMemory())
    context.recorder = recorder
    try:
        chain(types.params, 2)
        recorder.__class__, recorder.counted = Counting, []
        chain(types.params, 2)
    finally:
        context.recorder = None
    assert recorder.counted == [first, step, step]
    assert len(recorder.tape.node_type) == 6


def test_a_recorder_that_holds_its_handles_is_collected():
    types = TypeTable(abstract(PARAMS), chain)
    recorder = Recorder(Tape(types), CallMemory())
    context.recorder = recorder
    try:
        recorder.result = [chain(types.params, 2)]  # a cycle through a handle
    finally:
        context.recorder = None
    assert recorder.result[0].shape == (3,)
    gone = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert gone() is None


def test_what_a_signature_refers_to_stays():
    """An object at the address of a freed one must not be mistaken for it."""
    memory = CallMemory()
    kept = []
    for size in range(2, 40):
        params = {"w": np.ones((3, size), np.float32)}

        @eb.cell
        def of_size(params, x, size=size):
            return x * jnp.ones(size) + params["w"].sum()

        def model(params, x, cell=of_size):
            return cell(params, x)

        types = TypeTable(abstract(params), model)
        graph = record(model, types, [1.0], memory)
        kept.append(types.types[int(graph.node_type[0])].output_kinds)
        shape = types.avals[kept[-1][0]].shape
        assert shape == (size,)
        del types, graph, of_size, model
        gc.collect()


def test_handles_and_cells_are_what_they_were():
    seen = []

    def model(params, length):
        handle = chain(params, length)
        seen.append(handle)
        assert copy.copy(handle) is handle
        assert copy.deepcopy(handle) is handle
        assert isinstance(handle, eb.Handle)
        assert type(handle) is eb.Handle
        assert handle in {handle}
        assert not hasattr(handle, "__dict__")
        with pytest.raises(AttributeError):
            handle.name = "x"
        with pytest.raises(eb.PickleError):
            handle.__reduce__()
        return handle

    recording(model)([1])
    assert eb.Handle.__module__ == "edbatch.graph.handle"
    assert isinstance(first, eb.Cell)
    assert first.__name__ == "first"
    assert first.__wrapped__ is first.function


def test_a_cell_is_a_plain_function_where_nothing_is_recorded():
    found = first(2.0)
    assert np.array_equal(found[0], [2, 2, 2])
    assert np.array_equal(step(PARAMS, x=1.0, pair=found)[1], [1, 1, 1])


@needs_extension
def test_an_extension_of_other_sources_is_left_out(monkeypatch):
    from edbatch.graph import compiled_recording, recording_bases

    assert recording_bases._has_extension()
    monkeypatch.setattr(compiled_recording, "VERSION", 0)
    assert not recording_bases._has_extension()


@needs_extension
def test_calls_with_more_arguments_than_the_stack_holds():
    @eb.cell
    def total(*parts):
        leaves = [each for part in parts for each in part]
        return sum(leaves[1:], leaves[0])

    def model(params, count):
        x = chain(params, 1)
        return total([x] * count, [*range(count)])

    graph = recording(model)([500, 1, 500])
    ends = graph.operand_start
    last = graph.num_nodes - 1
    assert ends[last + 1] - ends[last] == 500
    assert graph.external_start[last + 1] - graph.external_start[last] == 500
