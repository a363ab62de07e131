"""The batches of one minibatch over time."""

import jax
import numpy as np
import pytest
from trees import encode, make_params, sample_trees

import edbatch as eb
from edbatch.errors import PlotError
from edbatch.models import get_workload
from edbatch.plot import plot_timeline


def timed(report):
    """The report with easily recognised times: 10, 20, ... microseconds."""
    return report.with_times(10.0 * (1 + np.arange(len(report.batches))), "measured")


def bars(axes):
    return sorted(
        (patch for container in axes.containers for patch in container),
        key=lambda each: each.get_x(),
    )


def test_bars_are_the_batches():
    trees = sample_trees(np.random.default_rng(0), 6)
    report = timed(eb.batch(encode, params=make_params()).explain(trees))
    top, bottom = plot_timeline(report).axes
    count = len(report.batches)
    assert len(bars(top)) == len(bars(bottom)) == count > 3
    ends = np.cumsum(report.batches.time_us) / 1e3
    for k, (nodes, rate) in enumerate(zip(bars(top), bars(bottom), strict=True)):
        use = report.types[report.batches.use[k]]
        assert nodes.get_height() == report.batches.nodes[k]
        assert nodes.get_x() + nodes.get_width() == pytest.approx(ends[k])
        seconds = report.batches.time_us[k] / 1e6
        flops = report.batches.nodes[k] * use.flops / use.nodes
        assert rate.get_height() == pytest.approx(flops / seconds / 1e9)
    title = top.get_title(loc="left")
    assert f"in {count} batches, {ends[-1]:,.2f} ms measured" in title


def test_the_legend_tells_shares_of_time_and_arithmetic():
    trees = sample_trees(np.random.default_rng(0), 6)
    report = timed(eb.batch(encode, params=make_params()).explain(trees))
    [legend] = plot_timeline(report).legends
    labels = [each.get_text() for each in legend.get_texts()]
    expected = [
        f"{use.type.cell}: {use.time_us / report.time_us:.0%} of the time,"
        f" {use.flops / report.flops:.0%} of the arithmetic"
        for use in sorted(report.types, key=lambda use: -use.time_us)
    ]
    assert labels == expected


def test_what_is_hoisted_is_drawn_pale():
    workload = get_workload("lattice-lstm")
    params = workload.init_params(jax.random.key(0), 8)
    batched = eb.batch(
        workload.model, params=params, compiler=eb.Compiler(hoisting="always")
    )
    report = batched.explain(workload.sample(np.random.default_rng(1), 3))
    figure = plot_timeline(timed(report))
    top, _ = figure.axes
    hoisted = [use for use, each in enumerate(report.types) if each.hoisted]
    assert hoisted
    for use, container in enumerate(top.containers):
        assert (container[0].get_alpha() is not None) == (use in hoisted)
    assert f"and {len(hoisted)} hoisted" in top.get_title(loc="left")
    [legend] = figure.legends
    assert any(", hoisted:" in each.get_text() for each in legend.get_texts())


def test_a_batch_that_takes_no_time():
    trees = sample_trees(np.random.default_rng(0), 2)
    report = eb.batch(encode, params=make_params()).explain(trees)
    figure = plot_timeline(report.with_times(np.zeros(len(report.batches)), "measured"))
    assert all(each.get_height() == 0 for each in bars(figure.axes[1]))


def test_it_needs_times():
    report = eb.batch(encode, params=make_params()).explain([(1, 2)])
    with pytest.raises(PlotError, match="call explain with measure=True"):
        plot_timeline(report)


@pytest.mark.parametrize("report", [None, [], 3, "policy.json"])
def test_what_is_no_report_is_refused(report):
    with pytest.raises(PlotError, match=r"what batched\.explain returns .* but this"):
        plot_timeline(report)
