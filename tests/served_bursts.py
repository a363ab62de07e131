"""Requests that come to a server in bursts, and the answers that they should get."""

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
    """Submits instances, some after a pause; answers are those of the model alone."""
    futures = []
    for each in instances:
        futures.append(server.submit_nowait(each))
        if rng.random() < 0.25:
            time.sleep(0.02)
    for instance, future in zip(instances, futures, strict=True):
        with jitted_cells():
            assert_same(future.result(120), model(params, instance))
