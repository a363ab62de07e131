"""How long does a step wait while the background thread compiles?

Runs a loop of training steps with `eb.jit`: first coarse steps, then steps while the
fine program is traced, lowered and compiled in the background, then fine steps. Prints
the median and the longest step of each part. Steps while the background thread traces
and lowers, which needs Python's global interpreter lock, are separate from steps while
XLA compiles. In a clone, on an idle machine:

    python experiments/swap_stall.py
    python experiments/swap_stall.py --models tree-lstm --hidden 256
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from first_gradient import load

import edbatch as eb
from edbatch.measuring import loss_of, timed

from arguments import option, parse_arguments

ROW = "{:22} {:26} {:>6} {:>10} {:>10}"
HEAD = ROW.format("model", "steps", "count", "median ms", "longest ms")

BEFORE, TRACING, COMPILING, AFTER = (
    "before, coarse",
    "while it traces, lowers",
    "while XLA compiles",
    "after, fine",
)


@dataclass(frozen=True)
class Arguments:
    models: str = option(
        "tree-lstm,message-passing", "Ready workloads, or message-passing."
    )
    hidden: int = option(64, "Length of the models' states; 32 for message-passing.")
    batch_size: int = option(64, "Instances per minibatch.")
    rounds: int = option(50, "Fine steps.")
    limit_s: float = option(300.0, "How long to wait for the fine program.")


def steps_by_part(
    step: Callable[[], Any], rounds: int, limit_s: float
) -> dict[str, list[float]]:
    """Times each step until the fine program has run for some rounds.

    Args:
        step: Runs a step of a new function of `eb.jit` and returns its result.
        rounds: Number of fine steps.
        limit_s: Maximum time to wait for the fine program, in seconds.

    Returns:
        Milliseconds of each step after the first, by the background thread's activity.
    """
    earlier = len(list(eb.compile_report()))
    timed(step)
    times: dict[str, list[float]] = {
        each: [] for each in (BEFORE, TRACING, COMPILING, AFTER)
    }
    end = time.monotonic() + limit_s
    while len(times[AFTER]) < rounds and time.monotonic() < end:
        part = _now(earlier)
        times[part].append(timed(step)[1])
    return times


def _now(earlier: int) -> str:
    """Returns the current activity of the background thread."""
    own = list(eb.compile_report())[earlier:]
    found = [each for each in own if each.background]
    if not found:
        return BEFORE
    running = [each for each in found if each.state != "finished"]
    if not running:
        return AFTER
    return COMPILING if running[0].lower_s > 0 else TRACING


def measure(name: str, arguments: Arguments) -> list[str]:
    """Measures one model."""
    model, params, instances, _ = load(name, arguments)
    batched = eb.batch(model, params=params)
    plan = batched.plan(instances[: arguments.batch_size])
    gradient = eb.jit(jax.grad(loss_of(batched)), tiers="auto")
    times = steps_by_part(
        lambda: gradient(params, plan),
        arguments.rounds,
        arguments.limit_s,
    )
    return [
        ROW.format(
            name,
            part,
            len(own),
            f"{np.median(own):.2f}" if own else "-",
            f"{max(own):.2f}" if own else "-",
        )
        for part, own in times.items()
    ]


def main(arguments: Arguments) -> None:
    print(HEAD, flush=True)
    for name in arguments.models.split(","):
        print("\n".join(measure(name, arguments)), flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
