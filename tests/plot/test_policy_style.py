from edbatch.plot.policy_style import policy_styles

ROWS = (
    *("learned", "learned alone", "searched"),
    *("agenda", "agenda-remaining", "depth", "greedy"),
)


def test_the_rows_of_a_comparison_look_the_same_in_every_picture():
    alone = {name: policy_styles([name])[name] for name in ROWS}
    assert policy_styles(ROWS) == alone
    assert policy_styles(["mine", *ROWS]).items() > alone.items()


def test_thirteen_policies_differ_by_more_than_colour():
    styles = policy_styles([*ROWS, *"abcdef"])
    assert len({each.marker for each in styles.values()}) == 13


def test_names_that_occur_twice_are_one_policy():
    assert [*policy_styles(["b", "a", "b"])] == ["b", "a"]


def test_lines_of_the_rows_differ_without_colour():
    assert len({str(each.dashes) for each in policy_styles(ROWS).values()}) == 7
