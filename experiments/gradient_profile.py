"""Where does the time of value and gradient go?

Runs a minibatch of a ready workload, with kept recordings and its plan on the device.
Prints the median times of the forward pass and of value and gradient (with `--tables`,
only the rows of a table's gradient, see `edbatch.sparse`); their lower limits, which
are their arithmetic at the speed of the fastest product that this process measures; and
the gradient's time by kind of operation, from a trace of JAX's profiler. Arithmetic
counts the products of nodes, not of padding; the gradient's is three times the forward
pass's. In a clone:

    python experiments/gradient_profile.py --cores 1 --keep-memory
    python experiments/gradient_profile.py --hidden 128 --tables embedding
    python experiments/gradient_profile.py --hidden 128 --compute-dtype bfloat16

Takes two minutes on two cores. Keep the machine otherwise idle.
"""

import gzip
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import edbatch as eb
from edbatch.benchmark.peak import peak_gflops
from edbatch.cell.flops import count_flops
from edbatch.measuring import loss_of, side_by_side
from edbatch.models import get_workload

from arguments import option, parse_arguments

# Kinds of operations, and patterns of their names in programs compiled for CPUs. The
# first match counts.
KINDS = (
    ("products", r"dot|ynn|custom-call|convolution"),
    ("clearing", r"(wrapped_)?broadcast(\.\d+)?$"),
    ("sums of weights' gradients", r"wrapped_add"),
    ("reading rows", r".*gather"),
    ("writing rows", r".*(dynamic-update-slice|scatter)"),
    ("copies and joins", r"(wrapped_)?(copy|concatenate|transpose|slice|bitcast|pad)"),
    ("loops", r"while|conditional|call"),
)
OTHER = "elementwise"
RUNS = 10  # in the trace


@dataclass(frozen=True)
class Arguments:
    workload: str = option("tree-lstm", "The model.")
    hidden: int = option(256, "Length of the model's states.")
    batch_size: int = option(64, "Instances of the minibatch.")
    rounds: int = option(30, "How often each is timed.")
    cores: int = option(0, "Cores to use, the first ones; 0 for all.")
    keep_memory: bool = option(False, "Keep freed memory: edbatch.keep_memory().")
    tables: str = option("", "A table whose gradient is wanted as rows.")
    compute_dtype: str = option("", "What cells compute in; float32 if empty.")
    seed: int = option(0, "Seed of inputs and parameters.")


def main(arguments: Arguments) -> None:
    if arguments.cores:
        cores = sorted(os.sched_getaffinity(0))[: arguments.cores]
        os.sched_setaffinity(0, cores)  # before XLA starts its threads
    if arguments.keep_memory:
        eb.keep_memory()
    eb.use_tiers("fine")
    workload = get_workload(arguments.workload)
    params = workload.init_params(jax.random.key(arguments.seed), arguments.hidden)
    dtype = arguments.compute_dtype or None
    batched = eb.batch(workload.model, params=params, compute_dtype=dtype)
    rng = np.random.default_rng(arguments.seed)
    recordings = batched.record_all(workload.sample(rng, arguments.batch_size))
    plan = jax.device_put(batched.plan(recordings))
    graph = batched.graph(recordings)
    transform: Callable[..., Any] = jax.value_and_grad
    if arguments.tables:
        transform = partial(eb.sparse.value_and_grad, tables=arguments.tables)
    forward, step = eb.jit(batched.apply), eb.jit(transform(loss_of(batched)))
    calls = [partial(forward, params, plan), partial(step, params, plan)]
    times = np.median(side_by_side(calls, arguments.rounds), axis=1)
    peak, gflop = peak_gflops(graph, arguments.seed), count_flops(graph) / 1e9
    print(
        f"{arguments.workload}, hidden {arguments.hidden}, {graph.num_nodes} nodes;"
        f" peak {peak:.0f} GFLOP/s"
    )
    names = ("forward", "value and gradient")
    for name, work, ms in zip(names, (gflop, 3 * gflop), times, strict=True):
        limit = 1e3 * work / peak
        print(f"{name:18} {ms:7.2f} ms, limit {limit:6.2f} ms, {limit / ms:4.0%}")
    print()
    for kind, ms in shares(profiled(calls[1])):
        print(f"{kind:28} {ms:7.2f} ms")


def profiled(call: Callable[[], Any]) -> Counter[str]:
    """Returns the milliseconds of each operation in a call's compiled program."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(RUNS):
                jax.block_until_ready(call())
        [file] = Path(folder).rglob("*.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    found: Counter[str] = Counter()
    operations = [e for e in events if "hlo_op" in e.get("args", {}) and "dur" in e]
    threads = {(e["pid"], e["tid"]) for e in operations}
    for thread in threads:
        own = [e for e in operations if (e["pid"], e["tid"]) == thread]
        found.update(own_times(own))
    return Counter({name: us / 1e3 / RUNS for name, us in found.items()})


def own_times(events: Iterable[dict[str, Any]]) -> Counter[str]:
    """Returns the time of each operation without nested ones, such as a loop's body."""
    found: Counter[str] = Counter()
    open_: list[tuple[float, str]] = []  # end and name
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while open_ and open_[-1][0] <= event["ts"]:
            open_.pop()
        if open_:
            found[open_[-1][1]] -= event["dur"]
        found[event["name"]] += event["dur"]
        open_.append((event["ts"] + event["dur"], event["name"]))
    return found


def shares(operations: Counter[str]) -> list[tuple[str, float]]:
    """Returns the time of each kind of operation, the longest first."""
    found: Counter[str] = Counter()
    for name, ms in operations.items():
        kinds = (kind for kind, form in KINDS if re.match(form, name))
        found[next(kinds, OTHER)] += ms
    return found.most_common()


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
