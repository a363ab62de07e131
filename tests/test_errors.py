from typing import Any

import pytest

from edbatch.errors import nearest, shown


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", ["a", "it's", "\n", 3, -0.5, None, (1, 2), ["a"], {"a": 1}, True]
)
def test_short_values_are_written_as_they_are(value: Any) -> None:
    assert shown(value) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        *("a" * 10**6, b"a" * 10**6, 10**5000, [10**5000], range(10**9)),
        *(nested(100_000), Unprintable(), [Unprintable()], {"a" * 99: 1}, [1] * 10**6),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("most", [20, 60])
def test_long_values_are_cut(value: Any, most: int) -> None:
    assert 0 < len(shown(value, most)) <= most


def test_of_many_names_a_few_are_listed() -> None:
    hint = nearest("zzz", (f"name{k:05}" for k in range(100_000)))
    assert hint.startswith("known are 'name00000', 'name00001', ")
    assert hint.endswith(", ...")
    assert len(hint) < 130
    assert len(nearest("z" * 10**6, ["a" * 10**6])) < 130
    assert nearest("a" * 10**6, []) == "none is known"
