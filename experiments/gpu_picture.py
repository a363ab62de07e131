"""A picture of what ran on a device, from a trace of JAX's profiler."""

from typing import Any


def draw(events: list[dict[str, Any]]) -> str:
    """Draws what ran on the device, or on the host where there is none, as SVG.

    Args:
        events: Events of a trace in Chrome's format.

    Returns:
        One row per thread or stream, the busiest first; a bar per event.
    """
    names: dict[Any, str] = {}
    for each in events:
        if each.get("ph") == "M" and each.get("name") == "process_name":
            names[each["pid"]] = each["args"]["name"]
    timed = [each for each in events if each.get("ph") == "X" and each.get("dur")]
    device = [each for each in timed if "device" in names.get(each["pid"], "")]
    rows: dict[Any, list[dict[str, Any]]] = {}
    for each in device or timed:
        rows.setdefault((each["pid"], each["tid"]), []).append(each)
    busiest = sorted(rows.values(), key=len, reverse=True)[:8]
    shown = [each for row in busiest for each in row]
    if not shown:
        return '<svg xmlns="http://www.w3.org/2000/svg"/>'
    start = min(each["ts"] for each in shown)
    length = max(each["ts"] + each["dur"] for each in shown) - start
    width, height = 1200, 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"'
        f' height="{height * len(busiest) + 30}" font-family="sans-serif">',
        f'<text x="4" y="16" font-size="13">{length / 1e3:.3f} ms,'
        f" {len(shown)} events</text>",
    ]
    for k, row in enumerate(busiest):
        for each in row:
            left = width * (each["ts"] - start) / length
            across = max(0.5, width * each["dur"] / length)
            hue = sum(map(ord, each["name"].split(".")[0])) * 47 % 360
            title = each["name"].replace("&", "&amp;").replace("<", "&lt;")
            parts.append(
                f'<rect x="{left:.2f}" y="{24 + k * height}" width="{across:.2f}"'
                f' height="{height - 4}" fill="hsl({hue},60%,55%)">'
                f"<title>{title} {each['dur']:.1f} µs</title></rect>"
            )
    return "\n".join([*parts, "</svg>\n"])
