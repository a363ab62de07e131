"""Submits requests to a server in bursts, and checks the answers."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from compared_answers import assert_same

import edbatch as eb
from edbatch.graph.context import jitted_cells


def check_bursts(
    server: eb.Server,
    model: Callable[[Any, Any], Any],
    params: Any,
    instances: Sequence[Any],
    rng: np.random.Generator,
) -> None:
    """Submits instances, some after a pause; answers must equal the model's own."""
    futures = []
    for each in instances:
        futures.append(server.submit_nowait(each))
        if rng.random() < 0.25:
            time.sleep(0.02)
    for instance, future in zip(instances, futures, strict=True):
        with jitted_cells():
            assert_same(future.result(120), model(params, instance))
