import pytest

from edbatch import policies


@pytest.mark.parametrize(
    ("old", "new"), [("Guarded", "BestOfHeuristics"), ("Searched", "BeamSearch")]
)
def test_an_old_name_names_the_new_one(old, new):
    with pytest.warns(DeprecationWarning, match=f"policies.{old} is now .*{new};"):
        found = getattr(policies, old)
    assert found is getattr(policies, new)


def test_other_names_do_not_exist():
    with pytest.raises(AttributeError, match="has no attribute 'Guard'"):
        _ = policies.Guard
