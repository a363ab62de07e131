"""Reuse of rows: the number of rows, and gaps compared with a plain list of rows."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from trees import encode, make_params

import edbatch as eb
from edbatch.memory_planner import check_layout, plan_layout, report_memory
from edbatch.memory_planner.gaps import give_rows_back, take_rows

TREES = eb.batch(encode, params=make_params())


def rows_of(batched, instances, method, *, reuse):
    graph = batched.graph(instances)
    schedule = eb.get_policy("greedy").schedule(graph.structure)
    sizes = eb.Sizes(widths=(1, 4, 16), chunk_overhead=1)
    layout = plan_layout(graph, schedule, sizes, method=method, reuse=reuse)
    check_layout(layout, graph)
    assert layout.reuse == reuse
    return int(layout.arena_rows.sum()), report_memory(layout, graph)


@eb.cell
def step(params, state):
    return state * params["gain"]


def chain(params, length):
    state = step(params, np.float32(1))
    for _ in range(length - 1):
        state = step(params, state)
    return state


@pytest.mark.parametrize("method", ["schedule", "aligned"])
def test_a_chain_needs_two_values_however_long_it_is(method):
    batched = eb.batch(chain, params={"gain": np.float32(2)})
    long, report = rows_of(batched, [100] * 16, method, reuse=True)
    short, _ = rows_of(batched, [5] * 16, method, reuse=True)
    assert long == short
    assert report.peak_bytes == 2 * 16 * 4
    assert report.arena_bytes == report.peak_bytes + 4  # plus the zero row
    assert rows_of(batched, [100] * 16, method, reuse=False)[0] > 1600


@pytest.mark.parametrize("method", ["schedule", "aligned"])
def test_outputs_are_kept(method):
    def all_steps(params, length):
        states = [step(params, np.float32(1))]
        for _ in range(length - 1):
            states.append(step(params, states[-1]))
        return states

    batched = eb.batch(all_steps, params={"gain": np.float32(2)})
    rows, report = rows_of(batched, [20] * 16, method, reuse=True)
    assert rows == rows_of(batched, [20] * 16, method, reuse=False)[0]
    assert report.peak_bytes == report.arena_bytes - 4


@pytest.mark.parametrize("method", ["schedule", "aligned"])
def test_leaves_make_room_for_joins(method):
    trees = [(((1, 2), (3, 4)), ((5, 6), (7, 8)))] * 8
    rows, _ = rows_of(TREES, trees, method, reuse=True)
    assert rows < 0.9 * rows_of(TREES, trees, method, reuse=False)[0]


def test_results_are_the_same():
    params = make_params()
    trees = [(((1, 2), (3, 4)), 5), ((1, 2), (3, (4, (5, 6)))), 7] * 3
    expected = eb.batch(encode)(params, trees)
    for layout in ("schedule", "aligned"):
        batched = eb.batch(encode, planner=eb.Planner(layout=layout, reuse="always"))
        found = batched(params, trees)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


# ---- gaps ----


def gaps_of(is_free):
    """The ranges of true values in a list, as (first, length)."""
    edges = np.flatnonzero(np.diff([0, *is_free, 0]))
    return [(a, b - a) for a, b in edges.reshape(-1, 2).tolist()]


# One row is taken where there are gaps of four rows and of two.
_LARGE_THEN_SMALL = [(True, 3), (True, 0), (True, 1), (True, 0)]
_LARGE_THEN_SMALL += [(False, 0), (False, 1), (True, 0)]


@example(_LARGE_THEN_SMALL)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_gaps(steps):
    gap = np.zeros((64, 2), np.int64)
    gaps, top = 0, 1
    is_free = [False]
    taken = []
    for is_taken, number in steps:
        if is_taken:
            before = gaps_of(is_free)
            rows = number + 1
            row, gaps, top = take_rows(gap, gaps, top, rows)
            fitting = [length for _, length in before if length >= rows]
            if fitting:  # the smallest fitting gap, from its beginning
                assert (row, min(fitting)) in before
            is_free += [True] * (top - len(is_free))
            assert all(is_free[row : row + rows])
            is_free[row : row + rows] = [False] * rows
            taken.append((row, rows))
        elif taken:
            row, rows = taken.pop(number % len(taken))
            gaps = give_rows_back(gap, gaps, row, rows)
            is_free[row : row + rows] = [True] * rows
        assert gap[:gaps].tolist() == [list(each) for each in gaps_of(is_free)]
        assert len(is_free) == top
