"""Serving: requests that arrive over time, and policies that decide what runs next."""

from edbatch.schedule.serving.arrivals import Arrivals
from edbatch.schedule.serving.kernels import LOOK, WAIT
from edbatch.schedule.serving.library import InstanceLibrary
from edbatch.schedule.serving.policy import (
    JOIN_AT_ONCE,
    Admission,
    ServingPolicy,
    ServingState,
)
from edbatch.schedule.serving.simulation import Served, ServingConfig, Simulation

__all__ = [
    "JOIN_AT_ONCE",
    "LOOK",
    "WAIT",
    "Admission",
    "Arrivals",
    "InstanceLibrary",
    "Served",
    "ServingConfig",
    "ServingPolicy",
    "ServingState",
    "Simulation",
]
