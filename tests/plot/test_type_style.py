import itertools

import numpy as np
import pytest

from edbatch.graph import TypeKey
from edbatch.plot.type_style import (
    HATCHES,
    PALETTE,
    short_names,
    type_style,
    type_styles,
)
from edbatch.schedule.examples import chain


def test_sixty_types_look_different():
    assert len({type_style(k) for k in range(len(PALETTE) * len(HATCHES))}) == 63
    assert type_style(0) == type_style(63)


def lightness(color):
    """L* of CIELAB, from 0 (black) to 100."""
    from matplotlib.colors import to_rgb

    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16


def test_colours_differ_in_grey():
    for one, other in itertools.combinations(range(len(PALETTE)), 2):
        apart = abs(lightness(PALETTE[one]) - lightness(PALETTE[other]))
        assert apart > 9
        if apart < 12:  # greys that are hard to tell apart side by side
            assert type_style(one).hatch != type_style(other).hatch


def test_hatches_show_on_their_fill():
    for k in range(len(PALETTE)):
        style = type_style(k)
        assert abs(lightness(style.ink) - lightness(style.color)) > 45


def test_every_round_of_colours_has_other_hatches():
    for color in range(len(PALETTE)):
        hatches = {type_style(color + k * len(PALETTE)).hatch for k in range(9)}
        assert hatches == {*HATCHES}


def test_graphs_of_one_model_agree():
    first, more = chain("ab"), chain("abc")
    styles = type_styles(None, [first])
    assert type_styles(None, [more]).items() > styles.items()
    assert type_styles(None, [first, more]) == type_styles(None, [more])


def test_types_decide_the_order():
    graph = chain("abc")
    a, b, c = graph.type_keys
    x = TypeKey("x", "", 0)
    styles = type_styles([c, a], [graph], [b, x])
    assert [*styles] == [c, a, b, x]
    assert [*styles.values()] == [type_style(k) for k in range(4)]


@pytest.mark.parametrize(
    ("types", "names"),
    [
        ([("leaf", "", 0), ("join", "enc", 2)], ["leaf", "join"]),
        ([("h", "", 0), ("h", "", 2), ("out", "", 1)], ["h/0", "h/2", "out"]),
        ([("h", "a.x", 2), ("h", "a.y", 2)], ["h@x", "h@y"]),
        ([("h", "a.x", 2), ("h", "b.x", 2)], ["h@a.x", "h@b.x"]),
        ([("h", "a.x", 2), ("h", "a.x", 3)], ["h/2", "h/3"]),
        #   one of three needs less of its key than the other two
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
    assert max(map(len, names)) <= 23  # with a number appended, as all look alike
    assert all("…" in name for name in names)


def test_equal_keys_are_numbered():
    assert short_names([TypeKey("h", "", 0)] * 2) == ["h/0#0", "h/0#1"]


def test_no_types():
    assert short_names([]) == []
