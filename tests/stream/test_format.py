"""Tests the record format: an independent decoder reads back encoded streams."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import interpret, make_params, sample_program

import edbatch as eb
from edbatch.memory_planner.layout import plan_layout
from edbatch.policies import Greedy
from edbatch.stream.encode import count_trips, encode
from edbatch.stream.format import (
    Record,
    SlotRows,
    field_starts,
    find_chunks,
    record_format,
    record_formats,
)
from edbatch.stream.loop import Loop
from edbatch.stream.slice_variants import SliceVariants

SIZES = eb.Sizes(widths=(1, 3, 8))
BATCHED = eb.batch(interpret, params=make_params())


def laid_out(seed, instances, length, options):
    rng = np.random.default_rng(seed)
    programs = [sample_program(rng, length) for _ in range(instances)]
    graph = BATCHED.graph(programs)
    schedule = Greedy().schedule(graph.structure)
    return graph, plan_layout(graph, schedule, SIZES, **options)


def encoded(graph, layout):
    slices = SliceVariants(least_share=0).choose(graph, layout)
    return encode(graph, layout, slices.variants, slices.chunk_variant)


def decode(types, stream):
    """Decodes a stream from its beginning, field by field."""
    integers, at = stream.records.tolist(), 0

    def take(count):
        nonlocal at
        at += count
        return integers[at - count : at]

    found = []
    for p in stream.chunk_loop:
        loop = stream.loops[p]
        node_type = types[loop.type_id]
        outputs = [take(1)[0] for _ in node_type.output_kinds]
        [size] = take(1)
        externals = [take(loop.width) for _ in node_type.external_kinds]
        operands = [
            take(1)[0] if slot in loop.sliced else take(loop.width)
            for slot in range(len(node_type.operand_kinds))
        ]
        found.append((loop, Record(outputs, size, None, externals, operands)))
    assert at == len(integers)
    return found


def expected(graph, layout, loop, chunk):
    """The expected record of a chunk of the layout."""
    first, size = layout.chunk_start[chunk], int(layout.chunk_size[chunk])
    nodes = layout.order[first : first + size].tolist()
    padded = nodes + nodes[-1:] * (loop.width - size)
    node_type = graph.types.types[graph.node_type[nodes[0]]]

    def operand(node, slot):
        value = graph.operands[graph.operand_start[node] + slot]
        return int(layout.value_row[value]) if value >= 0 else 0

    outputs = range(graph.value_start[nodes[0]], graph.value_start[nodes[0] + 1])
    return Record(
        [int(layout.value_row[value]) for value in outputs],
        size,
        None,
        [
            [
                int(graph.external_rows[graph.external_start[v] + slot]) + 1
                for v in padded
            ]
            for slot in range(len(node_type.external_kinds))
        ],
        [
            operand(nodes[0], slot)
            if slot in loop.sliced
            else [operand(v, slot) for v in padded]
            for slot in range(len(node_type.operand_kinds))
        ],
    )


def plain(record):
    return jax.tree.map(np.ndarray.tolist, jax.tree.map(np.asarray, record))


LAYOUTS = {"schedule": {}, "aligned": {"method": "aligned"}, "reuse": {"reuse": True}}


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 25))
def test_a_stream_says_what_the_layout_does(options, seed, instances, length):
    graph, layout = laid_out(seed, instances, length, options)
    stream = encoded(graph, layout)
    found = iter(decode(graph.types.types, stream))
    ends = layout.batch_start[1:]
    batch = np.searchsorted(ends, layout.chunk_start, side="right")
    for each in np.unique(batch):
        left = np.flatnonzero(batch == each).tolist()
        own = [next(found) for _ in left]
        places = [stream.loops.index(loop) for loop, _ in own]
        assert places == sorted(places)
        for loop, record in own:
            match = [c for c in left if expected(graph, layout, loop, c) == record]
            assert match, "no chunk of the batch has this record"
            left.remove(match[0])
    assert next(found, None) is None


@pytest.mark.parametrize("options", LAYOUTS.values(), ids=LAYOUTS)
@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 25))
def test_records_are_read_as_they_are_decoded(options, seed, instances, length):
    graph, layout = laid_out(seed, instances, length, options)
    stream = encoded(graph, layout)
    formats = record_formats(graph.types.types, stream.loops)
    trips = count_trips(stream, stream.loops, stream.num_steps + 2)
    chunks = find_chunks(formats, trips)
    assert chunks.start[-1] == len(stream.records)
    np.testing.assert_array_equal(chunks.loop, stream.chunk_loop)
    np.testing.assert_array_equal(np.unique(chunks.step), range(stream.num_steps))
    assert (np.diff(chunks.step) >= 0).all()
    for p, (start, stop), (_, fields) in zip(
        stream.chunk_loop,
        pairwise(chunks.start),
        decode(graph.types.types, stream),
        strict=True,
    ):
        record = stream.records[start:stop]
        assert plain(formats[p].read(record)) == fields
        np.testing.assert_array_equal(formats[p].write(fields), record)


@pytest.mark.parametrize("width", [1, 4])
def test_a_slice_is_a_number_at_any_width(width):
    types = BATCHED.graph([[("word", [0]), ("join", [0, 0])]]).types.types
    join = next(each for each in types if each.key.cell == "join")
    sliced = record_format(join, Loop(join.id, width, sliced=(0,)))
    record = np.arange(sliced.length, dtype=np.int32)
    for each in (record, jnp.asarray(record)):
        fields = sliced.read(each)
        assert [np.ndim(each) for each in fields.operands] == [0, 1]
        assert [*np.ravel(fields.operands[1])] == [*range(3, 3 + width)]
    assert len(record_format(join, Loop(join.id, width)).starts) == len(sliced.starts)


@pytest.mark.parametrize("record", [np.arange(20), jnp.arange(20)], ids=type)
@pytest.mark.parametrize(
    "slots", [(0,), (2,), (0, 1, 2), (1, 2, 3), (0, 2), (1, 3), (0, 3)]
)
def test_rows_of_a_list_are_those_of_its_slots(record, slots):
    rows = SlotRows(record, (3, 7, 11, 15, 19), 4)
    wanted = np.stack([rows.of(slot) for slot in slots], axis=-1)
    np.testing.assert_array_equal(rows.stacked(slots), wanted)


def test_rows_of_a_list_are_found_beside_slices():
    rows = SlotRows(np.arange(20), (0, 1, 5, 9, 10), 4, sliced=(0, 3))
    assert [np.ndim(each) for each in rows.each()] == [0, 1, 1, 0]
    np.testing.assert_array_equal(
        rows.stacked((1, 2)), [[1, 5], [2, 6], [3, 7], [4, 8]]
    )


def test_the_table_of_fields_ends_with_the_length_of_the_record():
    types = BATCHED.graph([[("word", [0]), ("join", [0, 0])]]).types.types
    loops = [Loop(each.id, 4) for each in types]
    formats = record_formats(types, loops)
    table = field_starts(formats)
    assert table.shape == (len(loops), max(len(each.starts) for each in formats))
    for row, each in zip(table, formats, strict=True):
        assert tuple(row[: len(each.starts)]) == each.starts
        assert row[-1] == each.length
    assert field_starts([]).shape == (0, 1)
