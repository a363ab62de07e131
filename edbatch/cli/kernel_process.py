"""A process that compiles the loops of planning, beside what a command does first.

Numba compiles one function at a time in a process, and keeps what it compiled for the
others. Planning the first minibatch after an installation waits for a minute; where a
command trains a policy before, that time passes meanwhile, on another core.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from edbatch.memory_planner.alignment_search import best_alignment

# The process ends with the command, however that ends: its end closes the pipe. Not by
# a read of `sys.stdin`, which would hold a lock of Python's at the exit.
_CODE = """
import os, threading
watch = lambda: (os.read(0, 1), os._exit(1))
threading.Thread(target=watch, daemon=True).start()
from edbatch.cli.kernel_process import plan_once
plan_once()
"""


@contextmanager
def planning_compiled_beside() -> Iterator["subprocess.Popen[bytes] | None"]:
    """Compiles the loops of planning in another process while this context lasts.

    Yields:
        The process, or None where the loops are compiled already, or none can be
        started. Whoever plans waits for its end, see `wait_for`; where it fails,
        planning compiles.
    """
    process = None if _is_compiled() else _start()
    try:
        yield process
    finally:
        if process is not None:
            process.kill()
            process.communicate()


def wait_for(process: "subprocess.Popen[bytes]") -> None:
    """Waits until a process has planned, and compiles other loops meanwhile.

    The search of alignments is most of its work; encoding, which comes after it, and
    the default policy are left to this process.

    Args:
        process: What `planning_compiled_beside` yielded.
    """
    if process.poll() is None:
        plan_once("greedy", "schedule")
    process.wait()


def plan_once(
    policy: Literal["greedy", "depth"] = "depth",
    layout: Literal["auto", "schedule"] = "auto",
) -> None:
    """Plans a minibatch, and runs nothing. What the process does.

    Args:
        policy: As of `edbatch.batch`; that of depths has the shortest loops.
        layout: As of `edbatch.Planner`; alignments are searched for ``"auto"`` alone.
    """
    import jax
    import numpy as np

    import edbatch as eb
    from edbatch.models import get_workload

    workload = get_workload("tree-lstm-2type", vocabulary_size=10)
    params = jax.eval_shape(lambda: workload.init_params(jax.random.key(0), 4))
    trees = workload.sample(np.random.default_rng(0), 4)
    planner = eb.Planner(layout=layout)
    eb.batch(workload.model, policy, params=params, planner=planner).plan(trees)


def _is_compiled() -> bool:
    """Whether Numba has kept the largest of these loops, or compiles nothing."""
    function = getattr(best_alignment, "py_func", None)
    if function is None:  # NUMBA_DISABLE_JIT
        return True
    kept = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-*.nbi"
    folder = best_alignment.stats.cache_path
    return folder is not None and any(Path(folder).glob(kept))


def _start() -> "subprocess.Popen[bytes] | None":
    if not sys.executable:  # embedded in another program
        return None
    none = subprocess.DEVNULL
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    with suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _CODE],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=none,
            stderr=none,
        )
    return None
