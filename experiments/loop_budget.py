"""What does a budget of loops cost, and what does it save?

Each width of a type's chunks is a loop to compile. A workload is planned with all
widths for all types and with smaller budgets (`eb.Sizes(max_loops=)`); the programs run
the same minibatch alternately. In a clone, on an idle machine:

    python experiments/loop_budget.py
    python experiments/loop_budget.py --workloads tree-lstm --hidden 64,256

Seconds are the time of JAX and XLA to trace, lower and compile. Milliseconds are the
median of a call that waits for its result. Inputs are sampled.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

import edbatch as eb
from edbatch.measuring import loss_of, side_by_side

from arguments import option, parse_arguments
from ready_model import ready_model

ROW = "{:22} {:>6} {:>7} {:>6} {:>6} {:>9} {:>10} {:>10} {:>11}"
HEAD = ROW.format(
    "workload",
    "hidden",
    "budget",
    "loops",
    "chunks",
    "forward s",
    "forward ms",
    "gradient s",
    "gradient ms",
)


@dataclass(frozen=True)
class Arguments:
    workloads: str = option(
        "tree-lstm,lattice-lstm,bilstm-tagger,bilstm-tagger-char,neural-module-network",
        "Which ready workloads.",
    )
    hidden: str = option("128", "Lengths of the models' states.")
    budgets: str = option("all,64,16,0", "Budgets of loops; all for no limit.")
    batch_size: int = option(64, "Instances per minibatch.")
    rounds: int = option(15, "How often everything is timed.")
    seed: int = option(0, "Seed of inputs and parameters.")


class Compiled(NamedTuple):
    """A program, and the time that its compilation took."""

    run: Callable[[], Any]
    seconds: float


class Row(NamedTuple):
    """One budget of one workload."""

    budget: str
    plan: eb.Plan
    forward: Compiled
    gradient: Compiled


def compiled(function: Callable[..., Any], *arguments: Any) -> Compiled:
    start = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - start
    return Compiled(lambda: program(*arguments), seconds)


def prepare(model: Any, params: Any, instances: list[Any], budget: str) -> Row:
    """Plans a minibatch within a budget and compiles its programs."""
    sizes = eb.Sizes(max_loops=None if budget == "all" else int(budget))
    batched = eb.batch(model, params=params, sizes=sizes)
    plan = batched.plan(instances)
    forward = compiled(batched.apply, params, plan)
    gradient = compiled(jax.grad(loss_of(batched)), params, plan)
    return Row(budget, plan, forward, gradient)


def measure(name: str, hidden: int, arguments: Arguments) -> None:
    """Prints the rows of one workload."""
    model = ready_model(name, hidden, arguments.batch_size, arguments.seed)
    rows = [prepare(*model, budget) for budget in arguments.budgets.split(",")]
    forward, gradient = (
        np.median(side_by_side([each.run for each in calls], arguments.rounds), axis=1)
        for calls in ([row.forward for row in rows], [row.gradient for row in rows])
    )
    for k, row in enumerate(rows):
        assert row.plan.report is not None, "plans are made with a report"
        print(
            ROW.format(
                name,
                hidden,
                row.budget,
                len(row.plan.shape.program.loops),
                row.plan.report.chunks,
                f"{row.forward.seconds:.1f}",
                f"{forward[k]:.2f}",
                f"{row.gradient.seconds:.1f}",
                f"{gradient[k]:.2f}",
            ),
            flush=True,
        )


def main(arguments: Arguments) -> None:
    print(HEAD)
    for name in arguments.workloads.split(","):
        for hidden in arguments.hidden.split(","):
            measure(name, int(hidden), arguments)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
