"""Options of `Planner` and `Compiler`, and errors for bad values and old names."""

import pickle
from dataclasses import replace

import pytest

import edbatch as eb


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layout": "align"},
            "one of 'auto', 'schedule', 'aligned' but this is 'align'; did you",
        ),
        (
            {"reuse": True},
            "reuse of Planner is one of 'never', 'always' but this is True; write 'al",
        ),
        ({"effort": -1}, "effort of a layout is a whole number, 0 or more, but this"),
        ({"hoisting": "always"}, r"compiler=eb\.Compiler\(hoisting='always'\)\)"),
        ({"packing": False}, r"compiler=eb\.Compiler\(packing='never'\)\)"),
        ({"slices": False}, r"option of eb\.Compiler: .*Compiler\(slices='never'\)"),
        ({"remat": True}, r"'remat' has moved; .*Compiler\(remat='always'\)\)"),
    ],
)
def test_bad_values_are_one_sentence(options, message):
    with pytest.raises(eb.PlanError, match=message):
        eb.Planner(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"hoisting": "allways"},
            "one of 'auto', 'always', 'never' but this is 'allways'; did you mean 'alw",
        ),
        ({"hoisting": True}, "hoisting of Compiler is .* True; write 'always'"),
        ({"packing": True}, "packing of Compiler is .* True; write 'auto'"),
        ({"packing": False}, "is one of 'auto', 'never' but this is False; write 'ne"),
        ({"remat": False}, "is one of 'auto', 'always' but this is False; write 'au"),
    ],
)
def test_bad_values_of_the_compiler(options, message):
    with pytest.raises(eb.PlanError, match=message):
        eb.Compiler(**options)


def test_options_can_be_replaced_and_compared():
    planner = replace(eb.Planner(layout="aligned"), reuse="always")
    assert planner == eb.Planner(layout="aligned", reuse="always")
    assert pickle.loads(pickle.dumps(planner)) == planner
    with pytest.raises(TypeError, match="unexpected keyword argument 'widths'"):
        eb.Planner(widths=3)
