"""With only one device there is nothing to choose."""

import jax
import pytest
from trees import encode, make_params

import edbatch as eb


@pytest.mark.skipif(len(jax.devices()) > 1, reason="there are several devices")
def test_one_device_is_taken_without_a_measurement():
    params = make_params()
    batched = eb.batch(encode, params=params)
    found = eb.choose_devices(batched, params, [(1, 2)])
    assert found.function is batched
    assert found.devices == 1 and found.milliseconds == {}
    assert batched.compiles == 0
