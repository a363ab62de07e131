"""Shared by scripts that time ready workloads: a model with inputs, and a clock."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from edbatch.models import get_workload


class ReadyModel(NamedTuple):
    """The model of a workload, its parameters, and sampled instances."""

    model: Callable[..., Any]
    params: Any
    instances: list[Any]


def ready_model(name: str, hidden: int, count: int, seed: int) -> ReadyModel:
    """Makes a ready workload's model and inputs.

    Args:
        name: The workload.
        hidden: Length of the model's states.
        count: Number of instances.
        seed: Seed of inputs and parameters.

    Returns:
        The model, its parameters and instances.
    """
    workload = get_workload(name)
    params = workload.init_params(jax.random.key(seed), hidden)
    instances = workload.sample(np.random.default_rng(seed), count)
    return ReadyModel(workload.model, params, instances)


def cpu_ms(call: Callable[[], Any]) -> float:
    """Returns the CPU time that a call takes in this thread, in milliseconds."""
    start = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - start) / 1e6
