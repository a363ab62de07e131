"""Compiles the loops of planning in a background process, while a command trains.

Numba compiles one function at a time per process, and caches compiled functions for
other processes. After an installation, planning the first minibatch waits a minute for
these compilations. If a command trains a policy first, they can run at the same time,
on another core.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from edbatch.memory_planner.alignment_search import best_alignment

# The process ends with the command, however the command ends, because that closes the
# pipe. It reads the descriptor: a read of `sys.stdin` would hold a Python lock at exit.
_CODE = """
import os, threading
watch = lambda: (os.read(0, 1), os._exit(1))
threading.Thread(target=watch, daemon=True).start()
from edbatch.cli.kernel_process import plan_once
plan_once()
"""


@contextmanager
def background_compilation() -> Iterator["subprocess.Popen[bytes] | None"]:
    """Compiles the loops of planning in another process within this context.

    Yields:
        The process, or None if the loops are compiled already or no process can be
        started. Call `wait_for` before planning. If the process fails, planning
        compiles the loops itself.
    """
    process = None if _is_compiled() else _start()
    try:
        yield process
    finally:
        if process is not None:
            process.kill()
            process.communicate()


def wait_for(process: "subprocess.Popen[bytes]") -> None:
    """Waits for the background process, and compiles other loops in the meantime.

    The background process spends most of its time on the search of alignments. This
    process compiles the default policy, and the encoding, which follows the search.

    Args:
        process: The process yielded by `background_compilation`.
    """
    if process.poll() is None:
        plan_once("greedy", "schedule")
    process.wait()


def plan_once(
    policy: Literal["greedy", "depth"] = "depth",
    layout: Literal["auto", "schedule"] = "auto",
) -> None:
    """Plans a minibatch without running it; the background process calls this.

    Args:
        policy: As in `edbatch.batch`; ``"depth"`` has the shortest loops to compile.
        layout: As in `edbatch.Planner`; only ``"auto"`` searches alignments.
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
    """Whether Numba has cached the largest of these loops, or is disabled."""
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
