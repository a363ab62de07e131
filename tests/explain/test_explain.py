"""Costs that `explain` reports, recounted from recordings and plans."""

import json
from collections import Counter
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import HIDDEN, encode, make_params, sample_trees

import edbatch as eb
from edbatch.cell.flops import count_flops
from edbatch.explain.table import short
from edbatch.models import get_workload
from edbatch.stream.format import find_chunks, record_formats

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.4, "999"),
        (999.6, "1k"),
        (1_004, "1k"),
        (99_949, "99.9k"),
        (999_499, "999k"),
        (999_999, "1M"),
        (999_999_999, "1G"),
        (2e15, "2,000T"),
    ],
)
def test_numbers_with_three_digits(number, text):
    assert short(number) == text


def leaves(tree):
    return 1 if isinstance(tree, int) else sum(map(leaves, tree))


def height(tree):
    return 0 if isinstance(tree, int) else 1 + max(map(height, tree))


def heights_of(tree):
    if isinstance(tree, int):
        return []
    return [height(tree), *(each for part in tree for each in heights_of(part))]


def chunks_of(plan):
    """Widths and sizes of a plan's chunks by type, decoded from its stream."""
    program = plan.shape.program
    formats = record_formats(program.types.types, program.loops)
    found = find_chunks(formats, plan.trips[: plan.num_steps])
    widths, sizes = {}, Counter()
    for loop, (first, last) in zip(found.loop, pairwise(found.start), strict=True):
        key = str(program.types.types[program.loops[loop].type_id].key)
        widths.setdefault(key, Counter())[program.loops[loop].width] += 1
        sizes[key] += int(formats[loop].read(plan.stream[first:last]).size)
    return widths, sizes


def test_counts_of_trees():
    trees = sample_trees(np.random.default_rng(0), 12)
    batched = eb.batch(encode, params=make_params())
    report = batched.explain(trees)
    leaf, join = report.types
    inner = sum(map(leaves, trees)) - len(trees)
    assert (leaf.name, leaf.nodes, leaf.batches) == ("leaf/0", inner + len(trees), 1)
    assert (join.name, join.nodes) == ("join@join/4", inner)
    assert join.batches == join.chain == max(map(height, trees))
    assert report.lower_bound == 1 + max(map(height, trees)) == len(report.batches)
    # A product with a HIDDEN by HIDDEN matrix, and one with twice as many numbers.
    assert leaf.flops == 2 * HIDDEN**2 * leaf.nodes
    assert join.flops == 2 * 2 * HIDDEN**2 * inner
    widths, sizes = chunks_of(batched.plan(trees))
    for use in report.types:
        assert use.chunks == widths[use.name]
        assert use.nodes == sizes[use.name]
    heights = Counter(each for tree in trees for each in heights_of(tree))
    of_joins = report.batches.nodes[report.batches.use == 1].tolist()
    assert of_joins == [count for _, count in sorted(heights.items())]


def test_another_report_traces_no_cell_again():
    workload = get_workload("lattice-lstm")
    params = workload.init_params(jax.random.key(0), 8)
    instances = workload.sample(np.random.default_rng(1), 6)
    compiler = eb.Compiler(hoisting="always")
    batched = eb.batch(workload.model, params=params, compiler=compiler)
    batched.plan(instances)
    types = batched.types
    assert any(use.hoisted for use in batched.explain(instances).types)
    traces = dict(types.traces)
    batched.explain(instances)
    assert types.traces == traces


@pytest.mark.parametrize("hoisting", ["never", "always"])
@pytest.mark.parametrize("name", ["tree-lstm", "lattice-lstm", "mv-rnn"])
def test_sums_are_those_of_the_plan(name, hoisting):
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(0), 8)
    instances = workload.sample(np.random.default_rng(1), 6)
    compiler = eb.Compiler(hoisting=hoisting)
    batched = eb.batch(workload.model, params=params, compiler=compiler)
    graph, plan = batched.graph(instances), batched.plan(instances)
    report = batched.explain(instances)
    counts = {
        "nodes": sum(use.nodes for use in report.types if not use.hoisted),
        "hoisted": sum(use.nodes for use in report.types if use.hoisted),
        "batches": sum(use.batches for use in report.types if not use.hoisted),
        "chunks": sum(sum(use.chunks.values()) for use in report.types),
        "padding_rows": sum(use.padding_rows for use in report.types),
        "operands": sum(use.operands for use in report.types),
        "operands_in_place": sum(use.in_place for use in report.types),
        "operand_bytes": sum(use.operand_bytes for use in report.types),
        "in_place_bytes": sum(use.in_place_bytes for use in report.types),
    }
    for key, count in counts.items():
        assert count == getattr(plan.report, key), key
        assert count == getattr(report.plan, key), key
    nodes = np.bincount(graph.node_type, minlength=len(graph.types))
    for use in report.types:
        own = [k for k, each in enumerate(graph.types.types) if each.key == use.type]
        assert use.nodes == nodes[own].sum()
    assert report.flops == count_flops(graph)
    if hoisting == "always" and name == "lattice-lstm":
        assert any(use.hoisted for use in report.types)
    batches = report.batches
    for k, use in enumerate(report.types):
        assert batches.nodes[batches.use == k].sum() == use.nodes
        assert batches.rows[batches.use == k].sum() == use.rows


def test_layers_of_a_family_are_told_apart():
    @eb.cell
    def layer(weight, x):
        return jnp.tanh(weight @ x)

    def model(params, length):
        x = jnp.ones(4)
        for weight in params["layers"][:length]:
            x = layer(weight, x)
        return x

    batched = eb.batch(model, params={"layers": [jnp.eye(4)] * 6})
    batched.plan([6])  # makes the family
    report = batched.explain([6, 6, 5, 1])
    expected = {f"layer@layers.{k}/{int(k > 0)}": n for k, n in enumerate("433332")}
    assert {use.name: str(use.nodes) for use in report.types} == expected
    assert all(use.batches == 1 and use.flops == 32 * use.nodes for use in report.types)


def test_predicted_times_are_those_of_the_costs():
    trees = sample_trees(np.random.default_rng(2), 5)
    batched = eb.batch(encode, params=make_params())
    keys = tuple(use.type for use in batched.explain(trees).types)
    costs = eb.policies.CostModel(keys, (8,), ((3.0,), (5.0,)), (1, 1), (1.0, 1.0), 1.0)
    batched = eb.batch(encode, params=make_params(), costs=costs)
    report = batched.explain(trees)
    assert report.time_source == "predicted"
    leaf, join = report.types
    widest = -(-leaf.nodes // 8)
    assert leaf.time_us == 3 * widest + 1
    graph = batched.graph(trees)
    schedule = batched.policy.schedule(graph.structure)
    assert report.time_us == pytest.approx(costs.schedule_us(schedule, keys))
    assert join.time_us == pytest.approx(report.time_us - leaf.time_us)


def test_measured_times():
    """Batches with a hundred times the work take longer."""

    @eb.cell
    def small(params, x):
        return x @ params["small"]

    @eb.cell
    def large(params, x):
        x = jnp.concatenate([x] * 32)
        for _ in range(20):
            x = jnp.tanh(x @ params["large"])
        return x

    def model(params, count):
        x = jnp.ones(8)
        for _ in range(count):
            x = small(params, x)
        return large(params, x)

    params = {"small": jnp.eye(8), "large": jnp.eye(256)}
    batched = eb.batch(model, params=params)
    report = batched.explain([3, 5, 2], params=params, measure=True)
    assert report.time_source == "measured"
    times = report.batches.time_us
    assert times.shape == (len(report.batches),) and (times >= 0).all()
    slow = next(k for k, use in enumerate(report.types) if use.name == "large/1")
    assert (
        times[report.batches.use == slow].min()
        > times[report.batches.use != slow].max()
    )
    assert report.time_us == pytest.approx(sum(use.time_us for use in report.types))
    assert any(each.function.endswith("(measured)") for each in report.compilations)


def test_random_numbers_are_measured():
    @eb.cell
    def noise(x, rng):
        return x + jax.random.normal(rng, x.shape)

    batched = eb.batch(lambda params, x: noise(noise(x)), params={})
    key = jax.random.key(0)
    report = batched.explain([jnp.ones(3)] * 2, params={}, measure=True, rng=key)
    assert len(report.batches.time_us) == 2
    with pytest.raises(eb.PlanError, match="takes a key, 'rng'"):
        batched.explain([jnp.ones(3)] * 2, params={}, measure=True)


def test_measuring_needs_parameters():
    batched = eb.batch(encode, params=make_params())
    with pytest.raises(eb.PlanError, match="pass params=, arrays, to explain"):
        batched.explain([(1, 2)], measure=True)
    shapes = jax.eval_shape(lambda: make_params())
    with pytest.raises(eb.PlanError, match="shapes in place of arrays"):
        batched.explain([(1, 2)], measure=True, params=shapes)


def test_it_is_shown():
    trees = sample_trees(np.random.default_rng(3), 4)
    batched = eb.batch(encode, params=make_params())
    report = batched.explain(trees)
    text = str(report)
    assert max(map(len, text.splitlines())) <= 80
    for use in report.types:
        assert f"{use.name} " in text
    assert repr(report).count("\n") == 0
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert [each["nodes"] for each in found["types"]] == [u.nodes for u in report.types]
    assert sum(each["nodes"] for each in found["batch"]) == found["nodes"]
    html = report._repr_html_()
    assert html.count("<table>") == html.count("</table>") == 2
    assert "join@join/4" in html


def test_names_are_escaped_in_html():
    twice = eb.cell(lambda params, x: 2 * x, name="<script>&")
    html = eb.batch(twice, params={}).explain([1.0])._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;&amp;" in html


def test_recordings_are_explained():
    trees = sample_trees(np.random.default_rng(4), 4)
    batched = eb.batch(encode, params=make_params())
    of_instances = batched.explain(trees).to_json()
    of_recordings = batched.explain(batched.record_all(trees)).to_json()
    for each in (of_instances, of_recordings):
        each["plan"].pop("plan_ms")
    assert of_instances == of_recordings


def test_explaining_changes_no_plan():
    trees = sample_trees(np.random.default_rng(5), 6)
    one, other = (eb.batch(encode, params=make_params()) for _ in range(2))
    one.explain(trees)
    first, second = one.plan(trees), other.plan(trees)
    assert first.shape.program.loops == second.shape.program.loops
    assert (first.stream == second.stream).all()


def test_an_empty_minibatch():
    with pytest.raises(eb.PlanError, match="at least one instance"):
        eb.batch(encode, params=make_params()).explain([])


def test_what_compiled_is_that_of_the_function():
    """Compilations of other functions of the same name are not included."""
    params, trees = make_params(), [(1, 2), (3, (4, 5))]
    one, other = (eb.batch(encode, params=params) for _ in range(2))
    other(params, trees)
    assert one.explain(trees).compilations == ()
    one(params, trees)
    [found] = one.explain(trees).compilations
    assert (found.function, found.runs) == ("encode", 1)
    assert "Compiled so far for direct calls" in str(one.explain(trees))
