"""What does a call of `eb.jit` cost on the host, compared with one of `jax.jit`?

Repeatedly calls a function that takes parameters and a plan and computes almost
nothing, with increasing numbers of parameter arrays. Times are the minimum over rounds
of the mean of a round. In a clone:

    python experiments/dispatch_overhead.py

Takes seconds. Keep the machine otherwise idle.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import edbatch as eb

from arguments import option, parse_arguments

ROW = "{:>7} {:>12} {:>12} {:>12}"
HEAD = ROW.format("arrays", "jax.jit us", "eb.jit us", "more us")


@dataclass(frozen=True)
class Arguments:
    arrays: str = option("2,30,100", "Numbers of arrays of parameters.")
    calls: int = option(2000, "Calls per round.")
    rounds: int = option(7, "How often everything is timed.")


def microseconds(run: Callable[[], Any], calls: int) -> float:
    """Returns the mean time of a call, in microseconds."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return 1e6 * (time.perf_counter() - start) / calls


def measure(count: int, own: Arguments) -> tuple[float, float]:
    """Times both functions alternately, with `count` parameter arrays."""
    double = eb.cell(lambda params, x: 2 * x)
    batched = eb.batch(lambda params, x: double(params, x), params={})
    plan = jax.device_put(batched.plan([1.0, 2.0]))
    params = {f"layer {k}": jnp.ones(4) for k in range(count)}

    def function(params: Any, plan: Any) -> Any:
        return params["layer 0"] + plan.num_steps

    functions = [jax.jit(function), eb.jit(function, tiers="fine")]
    runs = [lambda each=each: each(params, plan) for each in functions]
    for run in runs:
        microseconds(run, own.calls // 10 + 1)
    times = [[microseconds(run, own.calls) for run in runs] for _ in range(own.rounds)]
    plain, tiered = map(min, zip(*times, strict=True))
    return plain, tiered


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    own = parse_arguments(Arguments, __doc__, words)
    print(HEAD)
    for count in map(int, own.arrays.split(",")):
        plain, tiered = measure(count, own)
        row = (f"{plain:.1f}", f"{tiered:.1f}", f"{tiered - plain:.1f}")
        print(ROW.format(count, *row))


if __name__ == "__main__":
    main()
