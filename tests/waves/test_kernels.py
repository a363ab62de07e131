"""Compiled functions of waves keep the GIL, since they run for microseconds.

If one released the GIL, a thread that is busy in Python would keep it for 5 ms.
"""

import pytest
from numba.core.dispatcher import Dispatcher

from edbatch.waves import encoding, wave_nodes


@pytest.mark.parametrize("module", [encoding, wave_nodes])
def test_compiled_code_keeps_the_lock(module):
    kernels = [each for each in vars(module).values() if isinstance(each, Dispatcher)]
    assert kernels
    for each in kernels:
        assert not each.targetoptions.get("nogil"), each
