"""Odd values to put at every place of a JSON value, one at a time."""

from collections.abc import Iterator
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    *([], {}, None, True, "", "x" * 10**6, [[]], [0], [None], {"a": 1}),
    *(-1, 0, 1, 2**70, 10**4000, 0.5, -0.0, 1e-320, 1e308),
)


def places(content: Any) -> Iterator[tuple[str | int, ...]]:
    """Yields the path to each value of a JSON value; the whole has the empty path."""
    yield ()
    steps = range(len(content)) if isinstance(content, list) else ()
    for step in content if isinstance(content, dict) else steps:
        yield from ((step, *rest) for rest in places(content[step]))


def place_name(place: Any) -> str:
    """Names a place in the output of tests."""
    return ".".join(map(str, place))
