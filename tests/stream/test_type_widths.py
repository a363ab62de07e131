"""Tests the widths of types that a sample needs, within a budget of loops."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from trees import assert_equal, encode, make_params, sample_trees

import edbatch as eb
from edbatch.errors import PlanError
from edbatch.memory_planner.sizes import Sizes, cut_costs, cut_tables
from edbatch.stream.type_widths import TypeBatches, choose_widths
from edbatch.target import CPU

WIDTHS = Sizes().widths
TREES = sample_trees(3, 40)


def batches(sizes, work=1e5):
    size, count = np.unique(sizes, return_counts=True)
    return TypeBatches(size, count, work)


def pairs(batched):
    return sum(len(each) for each in batched.decisions.widths.values())


def test_every_type_has_a_width():
    chosen = choose_widths({0: batches([5]), 3: batches([700])}, Sizes(), 0)
    assert chosen == {0: (8,), 3: (8,)}
    assert choose_widths({0: batches([5])}, Sizes(widths=(2, 4)), 0) == {0: (4,)}


def test_a_width_that_saves_nothing_is_not_chosen():
    assert choose_widths({0: batches([8] * 9)}, Sizes(), 99) == {0: (8,)}
    assert choose_widths({0: batches([64] * 9)}, Sizes(), 99) == {0: (8, 64)}


def test_no_width_is_larger_than_rows_allow():
    own = batches(range(1, 300))
    assert max(choose_widths({0: own}, Sizes(), 99)[0]) > 100
    for most, widths in ((50, {4, 8, 16, 24, 32, 48}), (6, {4}), (1, {4})):
        [chosen] = choose_widths({0: replace(own, most=most)}, Sizes(), 99).values()
        assert set(chosen) <= widths
        assert max(chosen) == max(widths)


@eb.cell
def shift(x):
    return x + 1.0


def image(params, x):
    return shift(shift(x))


@pytest.mark.parametrize(("side", "rows"), [(512, 32), (1024, 8), (2048, 4)])
def test_chunks_of_large_rows_are_narrow(side, rows):
    """A chunk reads and writes at most 64 MiB, except at the smallest width."""
    x = np.broadcast_to(np.float32(0), (side, side))
    batched = eb.batch(image, params=())
    program = batched.plan([x] * 3).shape.program
    assert max(max(each) for each in batched.decisions.widths.values()) == rows
    assert max(n for _, n in program.arena_rows) <= 16


def test_the_budget_goes_where_the_work_is():
    sizes = range(1, 300)
    cheap, dear = batches(sizes, 1e2), batches(sizes, 1e6)
    chosen = choose_widths({0: cheap, 1: dear}, Sizes(), 5)
    assert len(chosen[0]) + len(chosen[1]) == 2 + 5
    assert len(chosen[1]) > len(chosen[0])


def test_chosen_widths_cost_little_more_than_all():
    own = batches(np.random.default_rng(0).integers(1, 400, 200))
    cost = [own.cost(each, 10) for each in ((8,), WIDTHS)]
    [chosen] = choose_widths({0: own}, Sizes(), 6).values()
    assert len(chosen) <= 7
    assert own.cost(chosen, 10) < cost[1] + 0.05 * (cost[0] - cost[1])


def test_families_have_widths_of_the_sizes_of_their_members():
    sizes = [1] * 60 + [2] * 30 + [12] * 9
    assert choose_widths({0: batches(sizes)}, Sizes(), 9)[0] == (4, 8, 16)
    own = replace(batches(sizes), more=CPU.member_widths)
    assert choose_widths({0: own}, Sizes(), 9)[0] == (1, 2, 8, 12)


def test_large_parameters_of_members_are_read_in_few_chunks():
    own = replace(batches([40]), more=CPU.member_widths)
    assert own.cost((8,), 0) < own.cost((64,), 0)
    dear = replace(own, read=1e6)
    assert dear.cost((8,), 0) > dear.cost((64,), 0)


@eb.cell
def expert(weights, x):
    return jnp.tanh(x @ weights)


def mixture(params, instance):
    k, x = instance
    return expert(params[k], x)


def experts(count, width, rows):
    """Parameters of experts, which take no memory, and inputs for them."""
    weights = np.broadcast_to(np.float32(0), (width, width))
    x = np.ones(width, np.float32)
    return [weights] * count, [(k, x) for k, n in enumerate(rows) for _ in range(n)]


@pytest.mark.parametrize(("count", "chunks"), [(4, [96, 12]), (512, [112])])
def test_chunks_of_large_families_are_few(count, chunks):
    params, instances = experts(count, 256, [98, 11, 12, 108])
    sizes = eb.Sizes(widths=(12, 96, 112), chunk_overhead=3)
    batched = eb.batch(mixture, params=params, sizes=sizes)
    found = batched.plan(instances).report
    assert found.chunks == 2 + 2 * len(chunks)


def test_experts_with_one_input_each_are_rows():
    params, instances = experts(300, 16, [1] * 300)
    plan = eb.batch(mixture, params=params).plan(instances)
    assert [each.width for each in plan.shape.program.loops] == [8, 1]
    given = eb.batch(mixture, params=params, sizes=eb.Sizes(widths=(4, 8)))
    assert min(x.width for x in given.plan(instances).shape.program.loops) == 4


def test_a_family_of_large_and_small_batches_has_no_narrow_widths():
    """Its coarse program would cut large batches into single rows."""
    params, instances = experts(9, 16, [1, 1, 1, 2, 2, 40, 60, 64, 64])
    loops = eb.batch(mixture, params=params).plan(instances).shape.program.loops
    assert {each.width for each in loops} >= {4, 64}
    assert all(each.width % 4 == 0 for each in loops)


@pytest.mark.parametrize("widths", [(1,), (3, 5), (4, 8, 64), WIDTHS])
def test_the_cut_is_the_best_of_all(widths):
    def least(rows, largest):
        """Minimum cost by brute force, with chunks in descending order."""
        if rows <= 0:
            return 0.0
        return min(
            10.0 + w + least(rows - w, w)
            for w in widths
            if w <= largest and (rows - w < w or w == widths[0] or rows >= w)
        )

    costs = cut_costs(widths, 10.0, 30)
    [table] = cut_tables((widths,), 10.0)
    for rows in range(1, 31):
        assert costs[rows] == least(rows, widths[-1])
        first = table[min(rows, len(table) - 1)]
        assert costs[rows] == 10 + first + costs[max(0, rows - first)]


def test_the_first_minibatch_decides_for_larger_ones_too():
    small = eb.batch(encode, params=make_params())
    small.plan(TREES[:2])
    assert min(max(each) for each in small.decisions.widths.values()) >= 32
    decided = small.decisions.widths
    small.plan(TREES)
    assert small.decisions.widths == decided


def test_a_sample_decides():
    fitted = [eb.batch(encode, params=make_params()).fit(TREES) for _ in range(2)]
    fitted[1].plan(TREES[:1])
    assert fitted[0].decisions.widths == fitted[1].decisions.widths


@pytest.mark.parametrize(("max_loops", "most"), [(0, 2), (3, 5), (None, None)])
def test_the_budget_is_kept(max_loops, most):
    sizes = eb.Sizes(max_loops=max_loops)
    batched = eb.batch(encode, params=make_params(), sizes=sizes)
    plan = batched.plan(TREES)
    loops = plan.shape.program.loops
    if most is None:
        assert batched.decisions.widths == {}
        assert len({each.width for each in loops}) > 4
        return
    assert pairs(batched) <= most
    assert len({(each.type_id, each.width) for each in loops}) <= most
    result = batched.apply(make_params(), plan)
    for k, tree in enumerate(TREES):
        assert_equal([each[k] for each in result], list(encode(make_params(), tree)))


@pytest.mark.parametrize("wrong", [-1, 1.5, "8", True])
def test_max_loops_is_checked(wrong):
    with pytest.raises(PlanError, match="max_loops"):
        eb.Sizes(max_loops=wrong)
