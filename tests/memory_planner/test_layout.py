"""The layout in schedule order, checked by `check_layout` and by breaking it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import interpret, make_params, sample_program
from trees import encode, sample_trees
from trees import make_params as make_tree_params

import edbatch as eb
from edbatch.memory_planner import check_layout, plan_layout

SIZES = eb.Sizes(widths=(2, 4), chunk_overhead=1)
RANDOM = eb.batch(interpret, params=make_params())
TREES = eb.batch(encode, params=make_tree_params())


def laid_out(batched, instances, policy="depth"):
    graph = batched.graph(instances)
    schedule = eb.get_policy(policy).schedule(graph.structure)
    return graph, plan_layout(graph, schedule, SIZES)


@given(
    st.integers(0, 2**32),
    st.integers(1, 5),
    st.integers(1, 30),
    st.sampled_from(["depth", "agenda", "greedy"]),
)
def test_random_programs(seed, instances, length, policy):
    rng = np.random.default_rng(seed)
    programs = [sample_program(rng, length) for _ in range(instances)]
    graph, layout = laid_out(RANDOM, programs, policy)
    check_layout(layout, graph)


def test_a_chain_is_read_in_place():
    chain = 1
    for _ in range(6):
        chain = (chain, 2)
    graph, layout = laid_out(TREES, [chain] * 3)
    check_layout(layout, graph)
    joins = layout.in_place[2:]  # after the leaves, and the first joins over leaves
    assert joins[:, :2].all()  # the state that is carried along
    assert not joins[:, 2:].any()  # leaves, of which each chain has several


def test_trees_report_what_is_in_place():
    graph, layout = laid_out(TREES, sample_trees(0, 8))
    check_layout(layout, graph)
    report = TREES.plan(sample_trees(0, 8)).report
    assert report.operands_in_place == count_in_place(graph)
    assert report.in_place_bytes <= report.operand_bytes


def count_in_place(graph):
    schedule = TREES.policy.schedule(graph.structure)
    return int(plan_layout(graph, schedule, TREES.sizes).in_place.sum())


def break_value_row(layout, graph):
    rows = layout.value_row.copy()
    rows[0] = rows[2]
    return replace(layout, value_row=rows)


def break_zero_row(layout, graph):
    return replace(layout, value_row=layout.value_row - 1)


def break_in_place(layout, graph):
    return replace(layout, in_place=~layout.in_place)


def break_order(layout, graph):
    order = layout.order.copy()
    order[0] = order[1]
    return replace(layout, order=order)


def break_arena(layout, graph):
    return replace(layout, arena_rows=layout.arena_rows - 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (break_value_row, "consecutive|written once"),
        (break_zero_row, "zero row"),
        (break_in_place, "in_place tells the truth"),
        (break_order, "runs once"),
        (break_arena, "rows stay in the arena"),
    ],
)
def test_the_check_finds_a_broken_layout(change, text):
    graph, layout = laid_out(TREES, [((1, 2), (3, 4)), (5, 6)])
    check_layout(layout, graph)
    with pytest.raises(AssertionError, match=text):
        check_layout(change(layout, graph), graph)
