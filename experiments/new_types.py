"""How long do requests of known shapes wait while others bring new ones?

To one server, one client sends requests of a known length, one after the other; every
so often another one sends an array of a length that no request had, for which a larger
program is compiled. Answers are checked. In a clone, on an idle machine:

    python experiments/new_types.py
    python experiments/new_types.py --every-s 0.5
"""

import gc
import sys
import time
import warnings
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import edbatch as eb
from edbatch.errors import ManyTypesWarning

from arguments import option, parse_arguments

HIDDEN = 64
STEPS = 8
KNOWN = 4  # lengths that the warm-up has
SWITCH_S = 2e-4  # as of `edbatch serve`


@dataclass(frozen=True)
class Arguments:
    seconds: float = option(20.0, "How long requests are sent.")
    every_s: float = option(2.0, "Seconds from one new length to the next.")


@eb.cell
def step(params: Any, state: Any) -> Any:
    """One step of a chain, the same for all requests."""
    return jnp.tanh(params["weights"] @ state)


@eb.cell
def total(params: Any, x: Any) -> Any:
    """Sums up an array, whose length makes a type of its own."""
    return jnp.cumsum(params["scale"] * x)


def model(params: Any, x: Any) -> Any:
    """Runs a chain, and looks at an array."""
    state = np.ones(HIDDEN, np.float32)
    for _ in range(STEPS):
        state = step(params, state)
    return state, total(params, np.asarray(x, np.float32))


def measure(seconds: float, every_s: float) -> dict[str, float]:
    """Sends requests for some time; returns what was answered, and how fast."""
    weights = jax.random.normal(jax.random.key(0), (HIDDEN, HIDDEN)) / HIDDEN**0.5
    params = {"weights": weights, "scale": jnp.float32(2)}
    taken: list[float] = []
    new: list[tuple[int, Future[Any]]] = []
    new_taken: list[float] = []
    with eb.Server(eb.batch(model), params) as server:
        server.warm_up([[1.0] * length for length in range(1, KNOWN + 1)])
        gc.collect()
        gc.freeze()
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            if now > begin + every_s * (len(new) + 1):
                length = KNOWN + 1 + len(new)
                future = server.submit_nowait([1.0] * length)
                future.add_done_callback(
                    lambda _, since=now: new_taken.append(time.perf_counter() - since)
                )
                new.append((length, future))
            server.submit_nowait([1.0]).result()
            taken.append(1e3 * (time.perf_counter() - now))
        for length, future in new:
            _, sums = future.result()
            np.testing.assert_allclose(sums, 2.0 * np.arange(1, length + 1))
    gc.unfreeze()
    return {
        "requests of known shapes": len(taken),
        "their median, ms": float(np.median(taken)),
        "their 99th percentile, ms": float(np.percentile(taken, 99)),
        "their longest, ms": max(taken),
        "requests of new shapes": len(new),
        "their mean, s": float(np.mean(new_taken or [0.0])),
        "the longest, s": max(new_taken, default=0.0),
    }


def main(arguments: Arguments) -> None:
    """Runs the measurement, and prints it."""
    sys.setswitchinterval(SWITCH_S)
    warnings.simplefilter("ignore", ManyTypesWarning)
    found = measure(arguments.seconds, arguments.every_s)
    for name, value in found.items():
        print(f"{name:26} {value:>10.5g}")


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
