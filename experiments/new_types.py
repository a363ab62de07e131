"""How long do requests of known shapes wait while others bring new ones?

A client sends a server requests of a known length, one after the other. At intervals
another client sends an array of a new length, for which a larger program is compiled,
or, with `--larger`, a request that calls twice as many cells as any before. Answers are
checked. In a clone, on an idle machine:

    python experiments/new_types.py
    python experiments/new_types.py --every-s 0.5
    python experiments/new_types.py --larger
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
KNOWN = 4  # number of lengths in the warm-up
MOST = 2**13  # maximum number of chains of a request
FEW = 16  # requests in flight with --larger, so that programs are too small at first
SWITCH_S = 2e-4  # switch interval of threads, as in `edbatch serve`


@dataclass(frozen=True)
class Arguments:
    seconds: float = option(20.0, "How long requests are sent.")
    every_s: float = option(2.0, "Seconds from one new length to the next.")
    larger: bool = option(False, "Send larger requests in place of new lengths.")


@eb.cell
def step(params: Any, state: Any) -> Any:
    """Makes one step of a chain, the same for all requests."""
    return jnp.tanh(params["weights"] @ state)


@eb.cell
def join(left: Any, right: Any) -> Any:
    """Joins the ends of two chains."""
    return (left + right) / 2


@eb.cell
def total(params: Any, x: Any) -> Any:
    """Returns cumulative sums of an array; each length is a separate type."""
    return jnp.cumsum(params["scale"] * x)


def model(params: Any, instance: tuple[Any, int]) -> Any:
    """Runs some equal chains, joins their ends, and sums up an array."""
    x, chains = instance
    ends = [np.ones(HIDDEN, np.float32)] * chains
    for _ in range(STEPS):
        ends = [step(params, state) for state in ends]
    while len(ends) > 1:
        rest = ends[len(ends) // 2 * 2 :]
        ends = [join(*pair) for pair in zip(ends[::2], ends[1::2], strict=False)] + rest
    return ends[0], total(params, np.asarray(x, np.float32))


def instance_of(number: int, *, larger: bool) -> tuple[list[float], int]:
    """Returns a request of a new shape or, if `larger`, a new size."""
    if larger:
        return [1.0], min(2 ** (5 + number), MOST)
    return [1.0] * (KNOWN + 1 + number), 1


def measure(seconds: float, every_s: float, *, larger: bool) -> dict[str, float]:
    """Sends requests for some time; returns the numbers of requests and their times."""
    weights = jax.random.normal(jax.random.key(0), (HIDDEN, HIDDEN)) / HIDDEN**0.5
    params = {"weights": weights, "scale": jnp.float32(2)}
    taken: list[float] = []
    new: list[tuple[tuple[list[float], int], Future[Any]]] = []
    new_taken: list[float] = []
    in_flight = FEW if larger else 256
    with eb.Server(eb.batch(model), params, max_in_flight=in_flight) as server:
        server.warm_up([([1.0] * (1 + k % KNOWN), 1 + k) for k in range(2 * KNOWN)])
        gc.collect()
        gc.freeze()
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + seconds:
            if now > begin + every_s * (len(new) + 1):
                instance = instance_of(len(new), larger=larger)
                future = server.submit_nowait(instance)
                future.add_done_callback(
                    lambda _, since=now: new_taken.append(time.perf_counter() - since)
                )
                new.append((instance, future))
            expected = server.submit_nowait(([1.0], 1)).result()[0]
            taken.append(1e3 * (time.perf_counter() - now))
        for (x, _), future in new:
            state, sums = future.result()
            np.testing.assert_allclose(state, expected, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(sums, 2.0 * np.arange(1, len(x) + 1))
    gc.unfreeze()
    return {
        "usual requests": len(taken),
        "their median, ms": float(np.median(taken)),
        "their 99th percentile, ms": float(np.percentile(taken, 99)),
        "their longest, ms": max(taken),
        "new ones": len(new),
        "their mean, s": float(np.mean(new_taken or [0.0])),
        "the longest, s": max(new_taken, default=0.0),
    }


def main(arguments: Arguments) -> None:
    """Runs the measurement and prints its results."""
    sys.setswitchinterval(SWITCH_S)
    warnings.simplefilter("ignore", ManyTypesWarning)
    found = measure(arguments.seconds, arguments.every_s, larger=arguments.larger)
    for name, value in found.items():
        print(f"{name:26} {value:>10.5g}")


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
