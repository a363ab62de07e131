"""A state of a server of three types, between two batches."""

import numpy as np

from edbatch.graph import TypeKey
from edbatch.schedule.serving import ServingState

KEYS = tuple(TypeKey(name, "", 0) for name in "abc")
STATE = ServingState(
    waiting=np.array([2, 0, 5]),
    remaining=np.array([8, 9, 40]),
    oldest_ms=np.array([3.0, 0.0, 9.0]),
    waited_ms=np.array([2.0, 0.0, 1.0]),
    slack_ms=np.array([-1.0, np.inf, 6.0]),
    in_flight=7,
    heads=np.array([2, 1, 20]),
)
