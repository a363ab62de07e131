"""The files that are said to take longest are there."""

from pathlib import Path

import pytest
from longest_files import LONGEST


@pytest.mark.parametrize("name", LONGEST)
def test_each_is_there(name):
    assert (Path(__file__).parent / name).is_file()
