import pytest

from edbatch.graph import TypeKey
from edbatch.plot.type_style import HATCHES, PALETTE, short_names, type_style


def test_sixty_types_look_different():
    assert len({type_style(k) for k in range(len(PALETTE) * len(HATCHES))}) == 63
    assert type_style(0) == type_style(63)


def test_the_first_types_differ_by_colour_alone():
    assert {type_style(k).hatch for k in range(len(PALETTE))} == {""}


@pytest.mark.parametrize(
    ("types", "names"),
    [
        ([("leaf", "", 0), ("join", "enc", 2)], ["leaf", "join"]),
        ([("h", "", 0), ("h", "", 2), ("out", "", 1)], ["h/0", "h/2", "out"]),
        ([("h", "a.x", 2), ("h", "a.y", 2)], ["h@x", "h@y"]),
        ([("h", "a.x", 2), ("h", "b.x", 2)], ["h@a.x", "h@b.x"]),
        ([("h", "a.x", 2), ("h", "a.x", 3)], ["h/2", "h/3"]),
        #   one of three is told apart by less than the other two
        (
            [("h", "a.x", 2), ("h", "a.x", 3), ("h", "a.y", 2)],
            ["h@x/2", "h/3", "h@y"],
        ),
        ([("h", "a.c.x", 2), ("h", "b.c.x", 2)], ["h@a.c.x", "h@b.c.x"]),
    ],
)
def test_names_say_as_little_as_tells_types_apart(types, names):
    assert short_names([TypeKey(*each) for each in types]) == names


def test_variants_differ_by_the_whole_key():
    types = [TypeKey("h", "p", 2), TypeKey("h", "p", 2, variant=1)]
    assert short_names(types) == ["h@p/2", "h@p/2~1"]


def test_long_names_stay_short_and_different():
    types = [TypeKey(f"{'a' * 30}{k}{'b' * 30}", "", 0) for k in range(12)]
    names = short_names(types, limit=20)
    assert len({*names}) == 12
    assert max(map(len, names)) <= 23  # with a number behind, as all look alike
    assert all("…" in name for name in names)


def test_equal_keys_are_numbered():
    assert short_names([TypeKey("h", "", 0)] * 2) == ["h/0#0", "h/0#1"]


def test_no_types():
    assert short_names([]) == []
