"""Tests cells with several outputs of one shape, in chunks of any number of nodes."""

import pytest
from asking_models import make_params
from several_outputs import check_outputs

import edbatch as eb

PARAMS = make_params()


@pytest.mark.parametrize("tier", ["coarse", "fine"])
@pytest.mark.parametrize("count", [1, 3, 5, 6, 7, 11])
def test_padding_overwrites_no_output(tier, count):
    with eb.use_tiers(tier):
        check_outputs(PARAMS, count)
