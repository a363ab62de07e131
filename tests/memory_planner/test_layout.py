"""All kinds of layouts, checked by `check_layout` and drawn as text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import interpret, make_params, sample_program
from trees import encode, sample_trees
from trees import make_params as make_tree_params

import edbatch as eb
from edbatch.memory_planner import check_layout, plan_layout, report_memory

SIZES = eb.Sizes(widths=(2, 4), chunk_overhead=1)
RANDOM = eb.batch(interpret, params=make_params())
PLAIN = eb.Planner(layout="schedule")
TREES = eb.batch(encode, params=make_tree_params(), planner=PLAIN)


def scheduled(batched, instances, policy="depth"):
    graph = batched.graph(instances)
    return graph, eb.get_policy(policy).schedule(graph.structure)


class RandomChoice(eb.FrontierPolicy):
    name = "random"

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def choose(self, frontier):
        return int(self.rng.choice(np.flatnonzero(frontier.sizes)))


@given(
    st.integers(0, 2**32),
    st.integers(1, 5),
    st.integers(1, 30),
    st.sampled_from(["depth", "agenda", "greedy", "random"]),
    st.sampled_from([(2, 4), (3,), (1, 2, 8), (32,)]),
    st.sampled_from([0, 500]),
)
def test_random_programs(seed, instances, length, policy, widths, effort):
    rng = np.random.default_rng(seed)
    programs = [sample_program(rng, length) for _ in range(instances)]
    graph, schedule = scheduled(
        RANDOM, programs, RandomChoice(seed) if policy == "random" else policy
    )
    check_all(graph, schedule, eb.Sizes(widths=widths, chunk_overhead=1), effort)


@given(
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.sampled_from(["depth", "agenda", "random"]),
    st.sampled_from([(2, 4), (3,), (32,)]),
)
def test_random_trees(seed, instances, policy, widths):
    graph, schedule = scheduled(
        TREES,
        sample_trees(seed, instances),
        RandomChoice(seed) if policy == "random" else policy,
    )
    check_all(graph, schedule, eb.Sizes(widths=widths, chunk_overhead=1), 500)


def check_all(graph, schedule, sizes, effort):
    """Checks all layouts of a schedule, and that better methods read more in place."""
    in_place = {}
    for method in ("schedule", "aligned"):
        for reuse in (False, True):
            layout = plan_layout(
                graph, schedule, sizes, method=method, reuse=reuse, effort=effort
            )
            check_layout(layout, graph)
            report = report_memory(layout, graph)
            assert report.peak_bytes <= report.arena_bytes
            in_place[method, reuse] = report.in_place_bytes
    assert in_place["aligned", False] >= in_place["schedule", False]
    assert in_place["schedule", True] >= in_place["schedule", False]
    assert in_place["aligned", True] >= in_place["aligned", False]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_many_random_programs(seed):
    rng = np.random.default_rng(seed)
    programs = [
        sample_program(rng, int(rng.integers(1, 60)))
        for _ in range(int(rng.integers(1, 12)))
    ]
    graph = RANDOM.graph(programs)
    for policy in ("depth", "agenda", "greedy", RandomChoice(seed)):
        schedule = eb.get_policy(policy).schedule(graph.structure)
        for widths in ((2, 4), (1, 3, 32), (16,)):
            sizes = eb.Sizes(widths=widths, chunk_overhead=1)
            check_all(graph, schedule, sizes, effort=20_000)


def test_schedule_order_is_that_of_the_schedule():
    graph, schedule = scheduled(TREES, sample_trees(0, 8))
    layout = plan_layout(graph, schedule, SIZES)
    assert layout.order is schedule.order
    batches = layout.order[layout.batch_start[:-1]]
    first_rows = layout.value_row[graph.value_start[batches]]
    assert (np.diff(first_rows) > 0).all()


def test_a_chain_is_read_in_place():
    chain = 1
    for _ in range(6):
        chain = (chain, 2)
    graph, schedule = scheduled(TREES, [chain] * 3)
    layout = plan_layout(graph, schedule, SIZES)
    check_layout(layout, graph)
    # Joins after the leaves and after the first joins, which read leaves only.
    joins = layout.in_place[layout.chunk_start >= layout.batch_start[2]]
    assert joins[:, :2].all()  # the carried state
    assert not joins[:, 2:].any()  # leaves; each chain has several


def test_plans_report_what_is_in_place():
    trees = sample_trees(0, 8)
    graph = TREES.graph(trees)
    schedule = TREES.policy.schedule(graph.structure)
    layout = plan_layout(graph, schedule, TREES.sizes)
    report = TREES.plan(trees).report
    assert report.operands_in_place == layout.in_place.sum() > 0
    assert report.in_place_bytes == report_memory(layout, graph).in_place_bytes
    assert report.in_place_bytes <= report.operand_bytes


# ---- arenas as text: outputs h and c of the nodes by row, dots for padding ----


def draw(layout, graph):
    [kind] = {kind for each in graph.types.types for kind in each.output_kinds}
    rows = ["."] * int(layout.arena_rows[kind])
    for value, row in enumerate(layout.value_row.tolist()):
        rows[row] = f"{value // 2}{'hc'[value % 2]}"
    return " ".join(rows[1:])


#    2    7       The leaves run first, then 2 and 6, then 7.
#   / \  / \
#  0  1 3  6
#         / \
#        4   5
TWO_TREES = [(1, 2), (3, (4, 5))]


@pytest.mark.parametrize(
    ("method", "reuse", "arena"),
    [
        (
            "schedule",
            False,
            "0h 1h 3h 4h 5h . . . 2h 6h . . 7h . . . "
            "0c 1c 3c 4c 5c . . . 2c 6c . . 7c . . .",
        ),
        (
            "aligned",
            False,
            # 2 and 6 read 0 and 4, 1 and 5. The leaves' padding rows are later written
            # by 2 and 6, whose padding rows are later written by 7.
            "0h 4h 1h 5h 3h 2h 6h 7h . . . 0c 4c 1c 5c 3c 2c 6c 7c . . .",
        ),
        (
            "aligned",
            True,
            # No node reads 0 any more when 7 is written. 7 writes three padding rows,
            # so it takes four rows that are no longer read.
            "7h 4h 1h 5h 3h 7c . . 0c 4c 1c 5c 3c 2h 6h . . 2c 6c . . .",
        ),
    ],
)
def test_the_arena_of_two_trees(method, reuse, arena):
    graph, schedule = scheduled(TREES, TWO_TREES)
    layout = plan_layout(
        graph, schedule, eb.Sizes(widths=(4,)), method=method, reuse=reuse
    )
    check_layout(layout, graph)
    assert draw(layout, graph) == arena
