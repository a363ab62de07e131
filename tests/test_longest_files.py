"""The files listed in `longest_files` exist."""

from pathlib import Path

import pytest
from longest_files import LONGEST


@pytest.mark.parametrize("name", LONGEST)
def test_each_is_there(name):
    assert (Path(__file__).parent / name).is_file()
