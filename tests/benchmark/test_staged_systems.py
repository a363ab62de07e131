"""`exact`, `levels` and `scan` compute what the unbatched model computes."""

import jax
import numpy as np
import programs
import pytest

import edbatch as eb
from edbatch.benchmark import UnsupportedError
from edbatch.benchmark.compile_counter import count_compiles
from edbatch.benchmark.differences import max_abs_error
from edbatch.benchmark.exact import MOST_GROUPS, Exact
from edbatch.benchmark.levels import Levels
from edbatch.benchmark.scan import Scan, ScanSorted
from edbatch.data import Tree, sample_tree
from edbatch.graph.context import jitted_cells
from edbatch.models import get_workload

pytestmark = pytest.mark.usefixtures("quick_compiles")

ALL = [Exact, Levels, Scan, ScanSorted]
HIDDEN = 6


def error_of(system, model, params, instances):
    """Runs a minibatch and compares every output with the unbatched model."""
    plan = system.plan(system.record(instances))
    found = system.results(plan, system.forward(plan))
    assert len(found) == len(instances)
    return max_abs_error(found, unbatched(model, params, instances))


def unbatched(model, params, instances):
    with jitted_cells():  # compiles whole cells, not operation by operation
        return [model(params, each) for each in instances]


def random_trees(seed, lengths):
    rng = np.random.default_rng(seed)
    return [sample_tree(rng, 50, length=each, shape="uniform") for each in lengths]


def tree_workload(**options):
    workload = get_workload("tree-lstm", vocabulary_size=50, **options)
    return workload.model, workload.init_params(jax.random.key(1), HIDDEN)


@pytest.mark.parametrize("classify", ["root", "nodes"])
@pytest.mark.parametrize("system", ALL)
def test_trees(system, classify):
    model, params = tree_workload(classify=classify)
    running = system(model, params)
    for seed, lengths in enumerate([(7, 1, 12, 3, 9), (10,), (1, 1)]):
        trees = random_trees(seed, lengths)
        assert error_of(running, model, params, trees) < 1e-6


@pytest.mark.parametrize("system", ALL)
def test_results_follow_the_order_of_the_instances(system):
    model, params = tree_workload()
    trees = random_trees(5, (9, 2, 6, 4, 1))
    running = system(model, params)
    plan = running.plan(running.record(trees[::-1]))
    found = running.results(plan, running.forward(plan))
    expected = unbatched(model, params, trees)
    assert max_abs_error(found[::-1], expected) < 1e-6
    assert max_abs_error(found, expected) > 0.01


@pytest.mark.parametrize("system", ALL)
def test_a_state_that_a_model_returns_is_no_sink(system):
    """Without a classifier, no node reads the composition at the root."""

    @eb.cell
    def leaf(params, word):
        return params["table"][word]

    @eb.cell
    def join(params, left, right):
        return jax.numpy.tanh(params["left"] @ left + params["right"] @ right)

    def encode(params, tree):
        return tree.fold(
            lambda node: leaf(params, node.word), lambda _, two: join(params, *two)
        )

    shapes = {"table": (50, 3), "left": (3, 3), "right": (3, 3)}
    params = {
        name: jax.random.normal(jax.random.key(k), shape)
        for k, (name, shape) in enumerate(shapes.items())
    }
    for lengths in [(2, 2), (5, 1, 2)]:
        trees = random_trees(3, lengths)
        assert error_of(system(encode, params), encode, params, trees) < 1e-6


@pytest.mark.parametrize("system", [Exact, Levels])
@pytest.mark.parametrize("name", ["tree-lstm-childsum", "bilstm-tagger"])
def test_other_workloads(system, name):
    workload = get_workload(name, vocabulary_size=50)
    params = workload.init_params(jax.random.key(2), HIDDEN)
    instances = workload.sample(np.random.default_rng(3), 40)
    short = sorted(instances, key=lambda each: len(list(workload.words(each))))[:4]
    running = system(workload.model, params)
    assert error_of(running, workload.model, params, short) < 1e-6


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("system", [Exact, Levels])
def test_random_programs(system, seed):
    rng = np.random.default_rng(seed)
    drawn = [programs.sample_program(rng, 10) for _ in range(3)]
    params = programs.make_params()
    running = system(programs.interpret, params)
    assert error_of(running, programs.interpret, params, drawn) < 1e-5


@pytest.mark.parametrize("system", [Scan, ScanSorted])
def test_scan_needs_inner_nodes_of_one_type(system):
    model, params = tree_workload(arity=3)
    leaves = tuple(Tree(word=k) for k in range(3))
    trees = [Tree(children=(Tree(children=leaves), Tree(children=leaves[:2])))]
    running = system(model, params)
    with pytest.raises(UnsupportedError, match=r"of 2 types \(compose/4, compose/6\)"):
        running.plan(running.record(trees))


def test_exact_refuses_what_takes_minutes_to_compile():
    model, params = tree_workload()
    rng = np.random.default_rng(0)
    chain = sample_tree(rng, 50, length=MOST_GROUPS, shape="chain")
    running = Exact(model, params)
    with pytest.raises(UnsupportedError, match=f"run {MOST_GROUPS + 1} groups"):
        running.plan(running.record([chain]))


def compiles(system, plan):
    with count_compiles() as count:
        jax.block_until_ready(system.forward(plan))
    return count.programs


def test_exact_compiles_for_every_minibatch():
    model, params = tree_workload()
    running = Exact(model, params)
    one, other = (
        running.plan(running.record(random_trees(k, (5, 8)))) for k in range(2)
    )
    assert [compiles(running, plan) for plan in (one, one, other)] == [1, 0, 1]


@pytest.mark.parametrize(("system", "programs"), [(Scan, 1), (ScanSorted, 4)])
def test_scan_compiles_once_per_padded_size(system, programs):
    model, params = tree_workload()
    running = system(model, params)
    plans = [
        running.plan(running.record(random_trees(k, lengths)))
        for k, lengths in enumerate([(3, 10, 18, 34), (4, 11, 19, 35), (3, 10, 18, 42)])
    ]
    assert [compiles(running, plan) for plan in plans] == [programs, 0, 1]


def test_scan_sorted_pads_less():
    model, params = tree_workload()
    trees = random_trees(0, (3, 4, 40, 3, 5, 4, 3, 4))

    def steps(system):
        plans = system.plan(system.record(trees))
        return sum(
            plan.graph.num_instances * segment.count
            for plan in plans
            for segment in plan.layout.segments
            if segment.scanned
        )

    assert steps(Scan(model, params)) == 8 * 40
    assert steps(ScanSorted(model, params)) == 3 * 2 * 8 + 2 * 40


def test_levels_compiles_once_per_type_and_width():
    model, params = tree_workload()
    running = Levels(model, params)
    shape = "balanced"  # levels of 8, 4, 2 and 1 nodes
    rng = np.random.default_rng(0)
    plans = [
        running.plan(running.record([sample_tree(rng, 50, length=8, shape=shape)]))
        for _ in range(2)
    ]
    widths = [(each.node_type.key.cell, each.width) for each in plans[0].calls]
    assert widths == [
        ("leaf", 8),
        ("compose", 4),
        ("compose", 2),
        ("compose", 1),
        ("classify", 1),
    ]
    # Besides the calls, programs allocate, pack parameters and gather the results.
    assert [compiles(running, plan) for plan in plans] == [5 + 3, 0]


def test_levels_pads_widths_to_powers_of_two():
    model, params = tree_workload(classify="nodes")
    running = Levels(model, params)
    plan = running.plan(running.record(random_trees(1, (5, 6, 2))))
    assert [each.width for each in plan.calls if each.node_type.key.cell == "leaf"] == [
        16
    ]
    assert all(each.width & (each.width - 1) == 0 for each in plan.calls)
