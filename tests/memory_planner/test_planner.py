"""What a planner takes, and what bad values get."""

import pytest

import edbatch as eb


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"layout": "align"},
            r"one of schedule, aligned but this is 'align'; did you mean 'aligned'\?",
        ),
        (
            {"hoisting": "allways"},
            r"one of auto, always, never but this is 'allways'; did you mean 'always'",
        ),
        ({"hoisting": True}, "one of auto, always, never but this is True"),
        ({"effort": -1}, "0 or more but is -1; leave it out for one that follows"),
    ],
)
def test_bad_values_are_one_sentence(options, message):
    with pytest.raises(eb.PlanError, match=message):
        eb.Planner(**options)
