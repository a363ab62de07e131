"""Operands read in place by aligned layouts: exhaustive search, chains, blocks."""

import itertools
import math
from functools import cache

import jax
import numpy as np
import pytest
from layout_oracles import Problem, best_in_place, best_of_all
from trees import all_states, encode, make_params, sample_tree

import edbatch as eb
from edbatch.memory_planner import check_layout, plan_layout, report_memory
from edbatch.models import get_workload

TREES = eb.batch(encode, params=make_params())
WIDTHS = [(4, 8, 16, 32), (1, 2, 4), (2, 3)]


@cache
def trees_of(leaves):
    """All binary trees with this number of leaves."""
    if leaves == 1:
        return [1]
    return [
        (left, right)
        for k in range(1, leaves)
        for left in trees_of(k)
        for right in trees_of(leaves - k)
    ]


def forests_of(leaves, least=2):
    """All multisets of trees with a join that have `leaves` leaves in total."""
    if leaves == 0:
        yield []
    for k in range(least, leaves + 1):
        for rest in forests_of(leaves - k, k):
            yield from ([tree, *rest] for tree in trees_of(k))


def scheduled(trees, policy, widths):
    graph = TREES.graph(trees)
    schedule = eb.get_policy(policy).schedule(graph.structure)
    return graph, schedule, eb.Sizes(widths=widths, chunk_overhead=1)


def in_place_bytes(graph, schedule, sizes, **options):
    layout = plan_layout(graph, schedule, sizes, method="aligned", **options)
    check_layout(layout, graph)
    return report_memory(layout, graph).in_place_bytes


@pytest.mark.parametrize("widths", WIDTHS)
def test_the_oracle_finds_what_trying_all_orders_finds(widths):
    tried = 0
    for trees in itertools.chain.from_iterable(map(forests_of, range(2, 6))):
        problem = Problem(*scheduled(trees, "depth", widths))
        orders = [math.factorial(len(each)) for each in problem.batches]
        if math.prod(orders) * math.factorial(len(orders)) <= 3000:
            assert best_in_place(problem) == best_of_all(problem), trees
            tried += 1
    assert tried > 10


@pytest.mark.parametrize("widths", WIDTHS)
def test_all_small_forests_are_read_as_by_exhaustive_search(widths):
    for trees in itertools.chain.from_iterable(map(forests_of, range(2, 8))):
        graph, schedule, sizes = scheduled(trees, "depth", widths)
        best = best_in_place(Problem(graph, schedule, sizes))
        assert in_place_bytes(graph, schedule, sizes) == best, trees


def sample_forest(rng, most_trees, most_leaves):
    count = int(rng.integers(1, most_trees + 1))
    return [
        sample_tree(rng, int(rng.integers(2, most_leaves + 1))) for _ in range(count)
    ]


def compare(seed, count, most_trees, most_leaves):
    """Compares random forests with exhaustive search; returns how many it compared."""
    rng = np.random.default_rng(seed)
    compared = 0
    for k in range(count):
        trees = sample_forest(rng, most_trees, most_leaves)
        policy = ["depth", "agenda", "greedy"][k % 3]
        graph, schedule, sizes = scheduled(trees, policy, WIDTHS[k // 3 % 3])
        problem = Problem(graph, schedule, sizes)
        if _orders(problem) > 1000:
            continue
        best = best_in_place(problem)
        assert in_place_bytes(graph, schedule, sizes) == best, trees
        compared += 1
    return compared


def _orders(problem):
    """The number of node orders that the oracle enumerates."""
    return math.prod(
        math.factorial(len(nodes))
        for nodes, slots in zip(problem.batches, problem.slots, strict=True)
        if slots
    )


def test_random_forests_are_read_as_by_exhaustive_search():
    assert compare(0, 60, 3, 6) > 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_random_forests_are_read_as_by_exhaustive_search(seed):
    assert compare(seed, 300, 4, 7) > 150


def test_effort_never_makes_it_worse():
    rng = np.random.default_rng(3)
    for _ in range(10):
        problem = scheduled(sample_forest(rng, 8, 12), "agenda", WIDTHS[0])
        found = [in_place_bytes(*problem, effort=k) for k in (0, 3000, 30_000)]
        assert found == sorted(found)


def test_the_same_graph_has_the_same_layout():
    problem = scheduled(sample_forest(np.random.default_rng(4), 9, 12), "depth", (8,))
    one, other = (plan_layout(*problem, method="aligned") for _ in range(2))
    assert (one.order == other.order).all()
    assert (one.value_row == other.value_row).all()


# ---- chains ----


def recurrent_share(batched, instances, policy):
    """Share of the bytes read from a node's own type (its state) that is in place."""
    graph = batched.graph(instances)
    schedule = eb.get_policy(policy).schedule(graph.structure)
    layout = plan_layout(graph, schedule, batched.sizes, method="aligned")
    check_layout(layout, graph)
    total = in_place = 0
    for c, start in enumerate(layout.chunk_start):
        nodes = layout.order[start : start + layout.chunk_size[c]]
        t = graph.node_type[nodes[0]]
        for slot, kind in enumerate(graph.types.types[t].operand_kinds):
            read = graph.structure.operand_node[graph.operand_start[nodes] + slot]
            recurrent = int((graph.node_type[read[read >= 0]] == t).sum())
            row_bytes = graph.types.avals[kind].num_bytes
            total += recurrent * row_bytes
            in_place += recurrent * row_bytes * int(layout.in_place[c, slot])
    return in_place / total


@pytest.mark.parametrize("name", ["bilstm-tagger", "bilstm-tagger-char", "lstm-nmt"])
@pytest.mark.parametrize("instances", [3, 32])
def test_chains_read_their_states_in_place(name, instances):
    workload = get_workload(name, vocabulary_size=50)
    batched = eb.batch(
        workload.model, params=workload.init_params(jax.random.key(0), 4)
    )
    sampled = workload.sample(np.random.default_rng(0), instances)
    for policy in ("greedy", f"zoo:{name}"):
        assert recurrent_share(batched, sampled, policy) >= 0.95


# ---- across blocks ----


def test_a_slice_may_begin_in_one_block_and_end_in_the_next():
    #      4        9       As left operands, 9 reads the leaf 5 and 4 reads the join 2:
    #     / \      / \      the last row of one block, the first of the next. Both
    #    2   3    5   8     orders of 9 and 4 gather on one side.
    #   / \          / \
    #  0   1        6   7
    trees = [((1, 2), 3), (4, (5, 6))]
    graph, schedule, sizes = scheduled(trees, "depth", (8,))
    layout = plan_layout(graph, schedule, sizes, method="aligned")
    check_layout(layout, graph)
    assert layout.order.tolist()[-5:] == [5, 2, 8, 9, 4]
    h = layout.value_row[graph.value_start[:-1]]
    assert h[2] == h[5] + 1
    assert layout.in_place[-1].tolist() == [True, True, False, False]


def test_batches_that_nobody_reads_follow_what_they_read():
    @eb.cell
    def classify(params, hidden):
        return hidden @ params["table"].T

    def model(params, tree):
        return [classify(params, each) for each in all_states(params, tree)]

    batched = eb.batch(model, params=make_params())
    trees = [((1, 2), (3, 4)), ((5, (6, 7)), 8), (9, 1)] * 5
    graph = batched.graph(trees)
    schedule = eb.get_policy("greedy").schedule(graph.structure)
    in_place = {}
    for method in ("schedule", "aligned"):
        layout = plan_layout(graph, schedule, batched.sizes, method=method)
        check_layout(layout, graph)
        chunk_type = graph.node_type[layout.order[layout.chunk_start]]
        classified = [
            t for t, each in enumerate(graph.types.types) if each.key.cell == "classify"
        ]
        in_place[method] = layout.in_place[chunk_type == classified, 0]
    assert in_place["aligned"].all()
    assert not in_place["schedule"].all()


def test_real_trees(shared_data):
    workload = get_workload("tree-lstm", vocabulary_size=1000)
    trees = workload.read(shared_data / "gum_const" / "const")[:64]
    batched = eb.batch(
        workload.model, params=workload.init_params(jax.random.key(0), 4)
    )
    graph = batched.graph(trees)
    schedule = eb.get_policy("zoo:tree-lstm").schedule(graph.structure)
    share = {}
    for method in ("schedule", "aligned"):
        layout = plan_layout(graph, schedule, batched.sizes, method=method)
        check_layout(layout, graph)
        report = report_memory(layout, graph)
        share[method] = report.in_place_bytes / report.operand_bytes
    # Most operands read values that are spread over several batches.
    assert share["schedule"] < 0.05
    assert share["aligned"] > 0.2
