"""Draws the operations that ran on a device, from a trace of JAX's profiler."""

from collections import defaultdict
from typing import Any

Event = dict[str, Any]

_LABELS, _WIDTH, _HEIGHT = 180, 1200, 26
_MOST_ROWS, _MOST_NAMES = 8, 12
_HOST = "python"  # the thread that dispatches and ends the trace


def draw(events: list[Event]) -> str:
    """Draws the operations of the device, or of the host if there is none, as SVG.

    Args:
        events: Events of a trace in Chrome's format.

    Returns:
        An SVG with one named row per thread or stream, the busiest first, and one bar
        per event, with its name and microseconds as tooltip; below, a list of the
        operations that took longest.
    """
    names = _names(events)
    timed = [each for each in events if each.get("ph") == "X" and each.get("dur")]
    device = [each for each in timed if "device" in names.get(each["pid"], "")]
    others = [each for each in timed if names.get(_row_of(each)) != _HOST]
    rows: dict[Any, list[Event]] = defaultdict(list)
    for each in device or others or timed:
        rows[_row_of(each)].append(each)
    busiest = sorted(rows.values(), key=_busy, reverse=True)[:_MOST_ROWS]
    shown = [each for row in busiest for each in row]
    if not shown:
        return '<svg xmlns="http://www.w3.org/2000/svg"/>'
    longest = _longest(shown)
    start = min(each["ts"] for each in shown)
    length = max(each["ts"] + each["dur"] for each in shown) - start
    height = 24 + _HEIGHT * len(busiest) + 18 * len(longest) + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LABELS + _WIDTH}"'
        f' height="{height}" font-family="sans-serif">',
        _text(4, 16, f"{length / 1e3:.3f} ms, {len(shown)} events", 13),
    ]
    for k, row in enumerate(busiest):
        top = 24 + k * _HEIGHT
        place = _row_of(row[0])
        label = names.get(place, names.get(place[0], ""))
        parts.append(_text(4, top + 16, label[:26]))
        # Events may be nested; outer events are drawn first.
        for each in sorted(row, key=lambda one: (one["ts"], -one["dur"])):
            left = _LABELS + _WIDTH * (each["ts"] - start) / length
            across = max(0.5, _WIDTH * each["dur"] / length)
            parts.append(
                f'<rect x="{left:.2f}" y="{top}" width="{across:.2f}"'
                f' height="{_HEIGHT - 4}" fill="{_color(each["name"])}">'
                f"<title>{_escaped(each['name'])} {each['dur']:.1f} µs</title></rect>"
            )
    top = 24 + _HEIGHT * len(busiest) + 14
    for k, (name, count, took) in enumerate(longest):
        y = top + 18 * k
        parts.append(
            f'<circle cx="{_LABELS + 6}" cy="{y - 4}" r="5" fill="{_color(name)}"/>'
        )
        text = f"{name[:120]}: {took / 1e3:.3f} ms in {count}"
        parts.append(_text(_LABELS + 18, y, text))
    return "\n".join([*parts, "</svg>\n"])


def _names(events: list[Event]) -> dict[Any, str]:
    """Returns the names of processes by pid, and of threads by (pid, tid)."""
    names: dict[Any, str] = {}
    for each in events:
        if each.get("ph") == "M" and each.get("name") == "process_name":
            names[each["pid"]] = each["args"]["name"]
        if each.get("ph") == "M" and each.get("name") == "thread_name":
            names[_row_of(each)] = each["args"]["name"]
    return names


def _busy(row: list[Event]) -> float:
    """Returns the total microseconds of a row's events, nested ones included."""
    return sum(each["dur"] for each in row)


def _row_of(event: Event) -> tuple[Any, Any]:
    return event["pid"], event["tid"]


def _longest(events: list[Event]) -> list[tuple[str, int, float]]:
    """Returns the longest operations: name, number of runs, total microseconds."""
    took: dict[str, list[float]] = defaultdict(list)
    for each in events:
        took[_operation(each["name"])].append(each["dur"])
    found = [(name, len(own), sum(own)) for name, own in took.items()]
    return sorted(found, key=lambda each: -each[2])[:_MOST_NAMES]


def _operation(name: str) -> str:
    return name.split(".")[0]


def _color(name: str) -> str:
    return f"hsl({sum(map(ord, _operation(name))) * 47 % 360},60%,55%)"


def _text(x: int, y: int, text: str, size: int = 11) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
