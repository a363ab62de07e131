"""Tables and pictures of a load test."""

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from load_server import (
    CELLS_FIRST_COME,
    CONTINUOUS,
    HEURISTICS,
    LEARNED,
    ONE_BY_ONE,
    SERVERS,
)

from edbatch.errors import MissingMatplotlibError
from edbatch.plot.figure import legend_below, new_figure

_COLORS = ("#D55E00", "#0072B2", "#56B4E9", "#009E73", "#000000", "#CC79A7")
_MARKERS = ("o", "s", "^", "v", "X", "D")
_TOP = 4.0  # upper end of the pictures, as a multiple of the limit


def draw(found: dict[str, Any], stem: Path) -> None:
    """Draws the percentiles of one model over the load, into ``<stem>.png``.

    Args:
        found: The measurements.
        stem: Path without a suffix. Nothing is drawn if matplotlib is missing.
    """
    try:
        figure = new_figure(9, 3.8)
    except MissingMatplotlibError as error:
        print(f"  no picture: {error}")
        return
    panels = figure.subplots(1, 2, sharey=True)
    limit, points = found["limit_ms"], _by_system(found)
    finite = [
        point["latency_ms"][key]
        for own in points.values()
        for point in own
        for key in ("p50", "p99")
        if point["latency_ms"][key] is not None
    ]
    top = max(_TOP * limit, 1.5 * min(finite, default=limit))
    handles: dict[str, Any] = {}
    for axes, key in zip(panels, ("p50", "p99"), strict=True):
        for k, (system, own) in enumerate(points.items()):
            loads = [each["rate"] for each in own]
            times = [min(each["latency_ms"][key] or top, top) for each in own]
            style = {"color": _COLORS[k % 6], "marker": _MARKERS[k % 6], "ms": 4}
            [handles[system]] = axes.plot(loads, times, lw=1.3, **style)
        handles[f"limit, {limit:g} ms"] = axes.axhline(limit, color="gray", ls="--")
        axes.set(xscale="log", yscale="log", title=f"{key} of the time to the answer")
        axes.set_xlabel("offered load, requests/s")
        axes.grid(color="#E6E6E6", which="both")
        axes.set_axisbelow(True)
    panels[0].set_ylabel("milliseconds")
    panels[0].set_ylim(top=1.1 * top)
    _write_ticks(panels)
    figure.suptitle(f"{found['workload']}, hidden {found['hidden']}")
    legend_below(figure, handles)
    figure.savefig(stem.with_suffix(".png"), dpi=150)


def _write_ticks(panels: Sequence[Any]) -> None:
    """Labels the axes with plain numbers, not powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for axes in panels:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            axis.set_minor_formatter(NullFormatter())


def _by_system(found: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    own: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in sorted(found["points"], key=lambda point: float(point["rate"])):
        own[each["system"]].append(each)
    return {name: own[name] for name in found["capacity"] if own[name]}


def write_tables(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes the tables of all models, as Markdown.

    Args:
        results: The measurements of each model.
        path: The file to write.
    """
    path.write_text("\n".join(map(table, results)))


def table(found: dict[str, Any]) -> str:
    """Returns the tables of one model: the main results, and all systems and loads."""
    compiled = sum(each["facts"]["compilations"] for each in found["points"])
    wrong = sum(each["wrong"] for each in found["points"])
    answered = sum(each["answered"] for each in found["points"])
    alone = ", ".join(
        f"{name} {each:.1f} ms" for name, each in found["alone_ms"].items()
    )
    lines = [
        f"### `{found['workload']}`, hidden {found['hidden']}",
        "",
        f"Requests from {found['data']}. One request alone: {alone}. In"
        f" {len(found['points'])} runs {compiled} compilations"
        f" ({found['discarded_runs']} were made again); of {answered:,} answers {wrong}"
        " differ from those of the model alone.",
        "",
        *_limits(found),
        "",
        *_compared_with_windows(found),
        "",
        *_compared_with_heuristics(found),
        *_loads(found),
        "",
    ]
    return "\n".join(lines)


def _limits(found: dict[str, Any]) -> list[str]:
    """Returns a row per system: its capacity, and its highest loads within limits."""
    limits = found["highest_load"]
    heads = [f"p99 within {each} ms, requests/s" for each in limits]
    lines = [
        f"| | capacity, requests/s | {' | '.join(heads)} |",
        "| --- |" + " --- |" * (1 + len(heads)),
    ]
    for name, capacity in found["capacity"].items():
        highest = [
            "none" if own[name] is None else f"{own[name]:.0f}"
            for own in limits.values()
        ]
        lines.append(f"| {name} | {capacity:.0f} | {' | '.join(highest)} |")
    ratios = [_ratios(own) for own in limits.values()]
    lines.append(
        f"| continuous, by the best window and one by one | | {' | '.join(ratios)} |"
    )
    return lines


def _ratios(highest: dict[str, float | None]) -> str:
    own = highest[CONTINUOUS]
    alone = highest.get(ONE_BY_ONE)
    windows = [
        each
        for name, each in highest.items()
        if name not in (*SERVERS, ONE_BY_ONE) and each is not None
    ]
    found = [max(windows, default=None), alone]
    return ", ".join(
        "-" if own is None or each is None else f"{own / each:.2f}" for each in found
    )


def _compared_with_windows(found: dict[str, Any]) -> list[str]:
    """Returns a row per load measured for both: p99 of continuous and of windows."""
    lines = [
        "| load, of the windows' capacity | p99 continuous | p99 of the best window"
        " | ratio |",
        "| --- | --- | --- | --- |",
    ]
    at: dict[float, dict[str, float]] = defaultdict(dict)
    for each in found["points"]:
        p99 = each["latency_ms"]["p99"]
        at[each["rate"]][each["system"]] = math.inf if p99 is None else p99
    for rate, own in sorted(at.items()):
        windows = [
            p99 for name, p99 in own.items() if name not in (*SERVERS, ONE_BY_ONE)
        ]
        if CONTINUOUS not in own or not windows:
            continue
        best = min(windows)
        ratio = own[CONTINUOUS] / best if math.isfinite(best) else math.nan
        share = 100 * rate / found["standard_capacity"]
        lines.append(
            f"| {share:.0f}% | {own[CONTINUOUS]:.1f} | {best:.1f} | {ratio:.2f} |"
        )
    return lines


def _compared_with_heuristics(found: dict[str, Any]) -> list[str]:
    """Returns a row for each load measured with the learned policy and a heuristic."""
    at: dict[float, dict[str, tuple[float, float]]] = defaultdict(dict)
    for each in found["points"]:
        times = each["mean_ms"], each["latency_ms"]["p99"]
        mean, p99 = (math.inf if each is None else each for each in times)
        at[each["rate"]][each["system"]] = mean, p99
    lines = []
    for rate, own in sorted(at.items()):
        names = [each for each in (*HEURISTICS, CELLS_FIRST_COME) if each in own]
        if LEARNED not in own or not names:
            continue
        cells = [f"{100 * rate / found['standard_capacity']:.0f}%, {rate:,.0f}/s"]
        for k in range(2):
            best = min(names, key=lambda each, own=own, k=k: own[each][k])
            ratio = own[LEARNED][k] / own[best][k]
            values = [_ms_of(own[each][k]) for each in (LEARNED, best, CONTINUOUS)]
            cells += [values[0], f"{values[1]} ({best})", f"{ratio:.2f}", values[2]]
        lines.append(f"| {' | '.join(cells)} |")
    if not lines:
        return []
    heads = [
        f"{what} {each}"
        for what in ("mean", "p99")
        for each in ("learned", "of the best heuristic", "ratio", "continuous")
    ]
    rule = "| --- |" + " --- |" * len(heads)
    return [f"| load | {' | '.join(heads)} |", rule, *lines, ""]


def _ms_of(milliseconds: float) -> str:
    return _ms(milliseconds if math.isfinite(milliseconds) else None)


def _loads(found: dict[str, Any]) -> list[str]:
    """Returns a row per system and load."""
    lines = [
        "| | load, requests/s | share of the windows' capacity | p50 | p95 | p99"
        " | first value p50 | p99 | answered/s | within the limit/s | CPU ms |",
        "| --- |" + " --- |" * 10,
    ]
    for system, own in _by_system(found).items():
        for each in own:
            facts = each["facts"]  # include the requests before the run
            requests = each["answered"] + facts.get("requests_before", 0)
            latency, first = each["latency_ms"], each["first_value_ms"]
            cells = [
                system,
                f"{each['rate']:.0f}",
                f"{100 * each['rate'] / found['standard_capacity']:.0f}%",
                *(_ms(latency[key]) for key in ("p50", "p95", "p99")),
                *(_ms(first[key]) for key in ("p50", "p99")),
                f"{each['reached']:.0f}",
                f"{each['goodput']:.0f}",
                f"{1e3 * facts['cpu_s'] / max(1, requests):.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _ms(milliseconds: float | None) -> str:
    return "∞" if milliseconds is None else f"{milliseconds:.1f}"
