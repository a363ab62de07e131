"""The counts of the memory report, compared with manual counts and definitions."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import interpret, make_params, sample_program
from trees import HIDDEN, encode
from trees import make_params as make_tree_params

import edbatch as eb
from edbatch.memory_planner import plan_layout, report_memory

RANDOM = eb.batch(interpret, params=make_params())
TREES = eb.batch(encode, params=make_tree_params())
ROW = 4 * HIDDEN


def laid_out(batched, instances, widths, **options):
    graph = batched.graph(instances)
    schedule = eb.get_policy("depth").schedule(graph.structure)
    sizes = eb.Sizes(widths=widths, chunk_overhead=1)
    return plan_layout(graph, schedule, sizes, **options), graph


@pytest.mark.parametrize(
    ("method", "in_place", "arena_rows"), [("schedule", 4, 32), ("aligned", 8, 22)]
)
def test_two_trees(method, in_place, arena_rows):
    # Five leaves, two joins of leaves, one of a leaf and a join; chunks of 8, 4 and 4.
    layout, graph = laid_out(TREES, [(1, 2), (3, (4, 5))], (4, 8), method=method)
    report = report_memory(layout, graph)
    assert report.operands == report.batch_operands == 2 * 4
    assert report.operands_in_place == report.batch_operands_in_place == in_place
    assert report.operand_bytes == 3 * 4 * ROW
    assert report.in_place_bytes == {4: 4, 8: 12}[in_place] * ROW
    assert report.gathered_bytes == report.operand_bytes - report.in_place_bytes
    assert report.padding_rows == 3 + 2 + 3
    [kind] = {kind for each in graph.types.types for kind in each.output_kinds}
    assert layout.arena_rows[kind] == arena_rows + 1  # plus the zero row
    # While the second batch runs, all leaves and its own two values are live.
    assert report.peak_bytes == 2 * (5 + 2) * ROW


@eb.cell
def double(state):
    return state * 2


def test_a_batch_of_several_chunks_is_one_slice_if_they_read_on():
    batched = eb.batch(lambda _, x: double(double(np.float32(x))), params={})
    layout, graph = laid_out(batched, [1, 2, 3, 4, 5, 6], (2,))
    report = report_memory(layout, graph)
    assert report.operands == report.operands_in_place == 3
    assert report.batch_operands == report.batch_operands_in_place == 1
    order = layout.order.copy()
    order[-4:] = order[[-2, -1, -4, -3]]  # each of the two chunks still reads in place
    report = report_memory(replace(layout, order=order), graph)
    assert report.operands_in_place == 3
    assert report.batch_operands_in_place == 0


def test_it_is_written_as_json():
    report = report_memory(*laid_out(TREES, [(1, 2)], (4,)))
    again = json.loads(json.dumps(report.as_dict()))
    assert again == report.as_dict()
    assert again["operands"] == 4


def most_live_bytes(layout, graph):
    """The peak memory by its definition, batch by batch."""
    returned = set()
    for _, values in graph.outputs.values():
        returned |= set(values.tolist())
    starts = layout.batch_start.tolist()
    batches = [layout.order[a:b] for a, b in itertools.pairwise(starts)]
    reads = [
        {
            value
            for v in nodes
            for value in graph.operands[slice(*graph.operand_start[v : v + 2])].tolist()
        }
        for nodes in batches
    ]
    size = {}
    most = 0
    for b, nodes in enumerate(batches):
        new = set()
        for v in nodes:
            for k, kind in enumerate(
                graph.types.types[graph.node_type[v]].output_kinds
            ):
                new.add(int(graph.value_start[v]) + k)
                size[int(graph.value_start[v]) + k] = graph.types.avals[kind].num_bytes
        needed = new | returned | set().union(*reads[b:])
        most = max(most, sum(each for value, each in size.items() if value in needed))
    return most


@given(st.integers(0, 2**32), st.integers(1, 25))
def test_the_peak_is_what_must_be_kept(seed, length):
    rng = np.random.default_rng(seed)
    programs = [sample_program(rng, length) for _ in range(3)]
    layout, graph = laid_out(RANDOM, programs, (2, 4))
    assert report_memory(layout, graph).peak_bytes == most_live_bytes(layout, graph)
