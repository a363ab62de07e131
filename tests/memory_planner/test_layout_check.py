"""`check_layout` finds errors in layouts."""

from dataclasses import replace

import pytest
from trees import encode, make_params

import edbatch as eb
from edbatch.memory_planner import check_layout, plan_layout

TREES = eb.batch(encode, params=make_params())
SIZES = eb.Sizes(widths=(2, 4), chunk_overhead=1)


def laid_out(method="schedule", *, reuse=False):
    graph = TREES.graph([((1, 2), (3, 4)), (5, 6)])
    schedule = eb.get_policy("depth").schedule(graph.structure)
    layout = plan_layout(graph, schedule, SIZES, method=method, reuse=reuse)
    check_layout(layout, graph)
    return layout, graph


def move_a_value(layout):
    rows = layout.value_row.copy()
    rows[0] = rows[2]
    return replace(layout, value_row=rows)


def move_into_the_zero_row(layout):
    return replace(layout, value_row=layout.value_row - 1)


def turn_in_place(layout):
    return replace(layout, in_place=~layout.in_place)


def lose_a_node(layout):
    order = layout.order.copy()
    order[0] = order[1]
    return replace(layout, order=order)


def shrink_the_arenas(layout):
    return replace(layout, arena_rows=layout.arena_rows - 1)


def move_a_chunk(layout):
    return replace(layout, chunk_start=layout.chunk_start + 1)


def narrow_the_chunks(layout):
    return replace(layout, chunk_width=layout.chunk_size - 1)


@pytest.mark.parametrize("method", ["schedule", "aligned"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (move_a_value, "consecutive"),
        (move_into_the_zero_row, "zero row"),
        (turn_in_place, "in_place tells the truth"),
        (lose_a_node, "each node runs once"),
        (shrink_the_arenas, "stay in the arena"),
        (move_a_chunk, "chunks cover the order"),
        (narrow_the_chunks, "a chunk holds its nodes"),
    ],
)
def test_a_broken_layout_is_found(method, change, text):
    layout, graph = laid_out(method)
    with pytest.raises(AssertionError, match=text):
        check_layout(change(layout), graph)


def test_a_value_that_is_overwritten_before_it_is_read_is_found():
    layout, graph = laid_out("schedule")
    rows = layout.value_row.copy()
    first_joins = layout.order[layout.batch_start[1] : layout.batch_start[2]]
    values = graph.value_start[first_joins]
    leaves = graph.value_start[layout.order[: len(first_joins)]]
    rows[values] = rows[leaves]  # h of the joins in the rows of h of leaves
    with pytest.raises(AssertionError, match=r"while their rows hold them|is kept"):
        check_layout(replace(layout, value_row=rows), graph)


def test_what_is_overwritten_in_the_end_is_missed_by_the_gradient_only():
    layout, graph = laid_out("aligned", reuse=True)
    with pytest.raises(AssertionError, match=r"value \d+ is kept"):
        check_layout(replace(layout, reuse=False), graph)


def test_an_output_that_is_overwritten_is_found():
    # The root (5, 6) is written by the second batch of three.
    layout, graph = laid_out("schedule")
    rows = layout.value_row.copy()
    early, late = graph.value_start[[9, 6]]
    assert set(graph.outputs.columns[0]) == {early, late}
    rows[late : late + 2] = rows[early : early + 2]
    with pytest.raises(AssertionError, match=r"value \d+ is kept"):
        check_layout(replace(layout, value_row=rows, reuse=True), graph)
