"""Does `layout="auto"` choose the better layout?

Runs ready workloads with their values in schedule order, aligned, and as "auto"
decides. Measures the compiled forward pass, alternating between the three, and, in a
separate loop, the CPU time to plan a minibatch of kept recordings. The ratio divides
the sum of both times for "auto" by the smaller of the other two sums. The last column
names the layout whose program and stream "auto" has, if any; times then differ only by
noise. In a clone, on an idle machine:

    python experiments/layout_speed.py
    python experiments/layout_speed.py --workloads tree-lstm,bilstm-tagger

Times are milliseconds: the median of the forward pass, the minimum of planning. Takes
ten minutes on two cores, most of it to compile.
"""

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

import edbatch as eb
from edbatch.measuring import side_by_side
from edbatch.models import WORKLOADS
from edbatch.plan.plan import Plan

from arguments import SpeedArguments, option, parse_arguments
from ready_model import cpu_ms, ready_model

LAYOUTS = ("schedule", "aligned", "auto")
ROW = "{:22} {:>16} {:>16} {:>16} {:>6} {:>9}"
HEAD = ROW.format("workload", *(f"{each}, plan" for each in LAYOUTS), "ratio", "is")


@dataclass(frozen=True)
class Arguments(SpeedArguments):
    workloads: str = option("all", "Which ready workloads.")
    rounds: int = option(25, "How often everything is timed.")


def same_work(plan: Plan, other: Plan) -> bool:
    """Whether two plans run the same program on the same integers."""
    own, others = jax.tree.leaves(plan), jax.tree.leaves(other)
    return plan.shape.program.loops == other.shape.program.loops and all(
        np.array_equal(one, two) for one, two in zip(own, others, strict=True)
    )


def measure(name: str, arguments: Arguments) -> str:
    """Times one workload; returns its row."""
    model, params, instances = ready_model(
        name, arguments.hidden, arguments.batch_size, arguments.seed
    )
    plans, runs, planning = [], [], []
    for layout in LAYOUTS:
        # Without a cache, every call makes a plan.
        batched = eb.batch(
            model,
            params=params,
            planner=eb.Planner(layout=layout),
            cache_bytes=0,
        )
        kept = batched.record_all(instances)
        make = partial(batched.plan, kept)
        plans.append(make())
        planning.append(min(cpu_ms(make) for _ in range(arguments.rounds)))
        run = eb.jit(batched.apply, tiers="fine")
        runs.append(partial(run, params, jax.device_put(plans[-1])))
    forward = np.median(side_by_side(runs, arguments.rounds), axis=1)
    total = forward + planning
    found = [each for each in (0, 1) if same_work(plans[2], plans[each])]
    return ROW.format(
        name,
        *(f"{a:.2f}, {b:.2f}" for a, b in zip(forward, planning, strict=True)),
        f"{total[2] / min(total[:2]):.2f}",
        LAYOUTS[found[0]] if found else "-",
    )


def main(arguments: Arguments) -> None:
    """Prints a row per workload."""
    print(HEAD)
    names = arguments.workloads
    for name in WORKLOADS if names == "all" else names.split(","):
        print(measure(name, arguments), flush=True)


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
