"""Measures edbatch on a GPU, in less than eight minutes, and writes a report.

Runs the tests marked ``gpu``, then ``edbatch bench --train`` for some workloads, sizes
and systems, and profiles one minibatch. The script installs nothing and needs no
installation of edbatch, only its dependencies. It writes ``gpu-report.json``,
``gpu-report.md`` and ``gpu-profile.svg``. Measurements that the goals refer to come
first; those for which there is no time are reported as not measured. On a machine
without a GPU it measures the CPU and says so. In a clone:

    python experiments/gpu_report.py --out report
    python experiments/gpu_report.py --workloads tree-lstm --hidden 8 --batch-sizes 4
"""

import gzip
import importlib.util
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_picture import draw
from gpu_report_text import Run, Task, markdown

from arguments import option, parse_arguments

LATE = "the time was over"
SLOWEST = "unbatched"
_TWO_CORES = (
    "import os; os.environ['JAX_PLATFORMS'] = 'cpu';"
    " hasattr(os, 'sched_setaffinity') and os.sched_setaffinity("
    "0, sorted(os.sched_getaffinity(0))[:2])"
)
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Arguments:
    workloads: str = option("tree-lstm,lattice-lstm,bilstm-tagger", "What to run.")
    hidden: str = option("256,1024", "Lengths of the models' states.")
    batch_sizes: str = option("64,256", "Instances per minibatch.")
    systems: str = option("edbatch,exact,levels,scan,unbatched", "What to compare.")
    rounds: int = option(5, "How often each system is timed.")
    minibatches: int = option(2, "Minibatches of each size.")
    seconds: int = option(450, "Time for everything.")
    tests: bool = option(True, "Run the tests marked gpu.")
    sources: bool = option(True, "Measure this clone, not what is installed.")
    out: Path = option(Path("."), "Where to write the report.")


def tasks(arguments: Arguments, platform: str) -> list[Task]:
    """Lists the benchmarks; those that the goals refer to come first.

    Args:
        arguments: Workloads, sizes and systems.
        platform: The platform on which JAX runs here.

    Returns:
        Benchmarks of all systems except the slowest, at each size; then benchmarks of
        the slowest system, timed once.
    """
    sizes = [
        (workload, int(hidden), int(count))
        for hidden, count, workload in itertools.product(
            arguments.hidden.split(","),
            arguments.batch_sizes.split(","),
            arguments.workloads.split(","),
        )
    ]
    workloads = arguments.workloads.split(",")
    first = [each for each in sizes if each[0] == workloads[0]]
    sizes.sort(key=lambda each: each not in (first[0], first[-1]))
    systems = arguments.systems.split(",")
    fast = ",".join(each for each in systems if each != SLOWEST)
    found = [Task(*size, fast, rounds=arguments.rounds) for size in sizes if fast]
    if platform != "cpu" and "edbatch" in systems:
        beside = Task(*first[0], "edbatch", train=False, on_cpu=True)
        found.insert(2, replace(beside, rounds=arguments.rounds))
    if SLOWEST in systems:
        found += [Task(*size, SLOWEST, rounds=1, minibatches=1) for size in sizes]
    return found


def importable(folder: Path) -> str:
    """Makes a folder from which edbatch can be imported without an installation.

    Args:
        folder: An empty folder.

    Returns:
        The first entry for ``PYTHONPATH``.
    """
    package = folder / "edbatch"
    package.mkdir()
    for each in (ROOT / "edbatch").iterdir():
        (package / each.name).symlink_to(each)
    for name in ("envs", "memory_planner", "policies"):
        (package / name).symlink_to(ROOT / name)
    return str(folder)


def environment(path: str) -> dict[str, str]:
    known = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [path, known]))}


def python(words: list[str], path: str, seconds: float) -> tuple[int, str, str]:
    """Runs Python; returns its exit status (124 after a timeout), stdout and stderr."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", *words],  # not the sources in the current folder
            capture_output=True,
            text=True,
            env=environment(path),
            cwd=ROOT,
            timeout=max(1.0, seconds),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
        return 124, printed.decode(errors="replace"), LATE
    return done.returncode, done.stdout, done.stderr


def describe(path: str) -> dict[str, Any]:
    """Describes the machine: the device that JAX sees, and versions."""
    code = (
        "import json, jax, jaxlib, numpy; d = jax.devices()[0];"
        "print(json.dumps({'platform': d.platform, 'device': d.device_kind,"
        " 'devices': jax.device_count(), 'jax': jax.__version__,"
        " 'jaxlib': jaxlib.__version__, 'numpy': numpy.__version__}))"
    )
    status, out, err = python(["-c", code], path, 120)
    if status:
        raise SystemExit(f"JAX did not start, so nothing can be measured: {err}")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found | {"python": platform.python_version(), "cpus": os.cpu_count()}


def run_tests(path: str, seconds: float) -> dict[str, Any]:
    """Runs the tests marked gpu."""
    if importlib.util.find_spec("pytest") is None:
        return {"passed": None, "output": "pytest is not installed, so no test was run"}
    words = ["-P", "-m", "pytest", "tests/executor/test_gpu.py", "-m", "gpu", "-q"]
    words += ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    status, out, err = python(words, path, seconds)
    lines = (out + err).splitlines()[-12:]
    # 5: no test was selected, or all were skipped at collection.
    return {"passed": None if status == 5 else status == 0, "output": "\n".join(lines)}


def bench(task: Task, arguments: Arguments, path: str, seconds: float) -> Run:
    """Runs one benchmark within a time limit, in seconds."""
    if seconds < 5:
        return Run(task, 0.0, None, "no time was left to start it")
    code = "from edbatch.cli.main import main; main()"
    if task.on_cpu:
        code = f"{_TWO_CORES}; {code}"
    words = ["-c", code, "bench", "--json", "--policy", "greedy"]
    words += ["--systems", task.systems, *(["--train"] if task.train else [])]
    words += ["--workload", task.workload, "--hidden", str(task.hidden)]
    words += ["--batch-size", str(task.batch_size), "--rounds", str(task.rounds)]
    words += ["--minibatches", str(task.minibatches or arguments.minibatches)]
    start = time.perf_counter()
    status, out, err = python(words, path, seconds)
    took = time.perf_counter() - start
    if status:
        why = " ".join((err or out).split())[-300:]
        return Run(task, took, None, why)
    return Run(task, took, json.loads(out))


def bench_all(
    left_to_do: list[Task], arguments: Arguments, path: str, left: Callable[[], float]
) -> list[Run]:
    """Runs benchmarks until the time is over.

    Args:
        left_to_do: The benchmarks. A benchmark that takes too long is tried again
            without gradients, before the benchmarks of the slowest system.
        arguments: The command line.
        path: The first entry for ``PYTHONPATH``.
        left: Returns the number of seconds left.

    Returns:
        The runs, including those that did not finish.
    """
    runs, queue = [], deque(left_to_do)
    while queue:
        task = queue.popleft()
        # Time that one run does not use is left to the later runs.
        weight = {each: 1 if each.systems == SLOWEST else 4 for each in (task, *queue)}
        share = 2 * left() * weight[task] / sum(weight.values())
        runs.append(bench(task, arguments, path, min(share, left())))
        print(f"{task.name}: {runs[-1].why or 'measured'}", flush=True)
        if runs[-1].why == LATE and task.train and task.systems != SLOWEST:
            slow = [k for k, each in enumerate(queue) if each.systems == SLOWEST]
            queue.insert(min(slow, default=len(queue)), replace(task, train=False))
    return runs


_PROFILED = """
import sys, jax, numpy as np, edbatch as eb
from edbatch.models import get_workload
workload = get_workload(sys.argv[1])
params = workload.init_params(jax.random.key(0), int(sys.argv[2]))
batched = eb.batch(workload.model, params=params)
plan = batched.plan(workload.sample(np.random.default_rng(0), int(sys.argv[3])))
run = jax.jit(batched.apply)
plan = jax.device_put(plan)
for _ in range(3):
    jax.block_until_ready(run(params, plan))
with jax.profiler.trace(sys.argv[4]):
    jax.block_until_ready(run(params, plan))
"""


def profile(
    arguments: Arguments, path: str, folder: Path, seconds: float
) -> tuple[str | None, str]:
    """Profiles one minibatch; returns an SVG, or None and the reason."""
    first = [each.split(",")[0] for each in (arguments.workloads, arguments.hidden)]
    words = ["-c", _PROFILED, *first, arguments.batch_sizes.split(",")[0], str(folder)]
    status, out, err = python(words, path, seconds)
    traces = sorted(folder.rglob("*.trace.json.gz"))
    if status or not traces:
        return None, " ".join((err or out).split())[-300:] or "no trace was written"
    with gzip.open(traces[-1], "rt") as file:
        return draw(json.load(file)["traceEvents"]), ""


def main(arguments: Arguments) -> None:
    start = time.perf_counter()

    def left() -> float:
        return arguments.seconds - (time.perf_counter() - start)

    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = importable(Path(folder)) if arguments.sources else ""
        machine = describe(path)
        tests: dict[str, Any] = {"passed": None, "output": "not asked for"}
        if arguments.tests:
            tests = run_tests(path, min(90.0, left() / 4))
        picture, why = profile(arguments, path, Path(folder) / "profile", left() / 4)
        todo = tasks(arguments, machine["platform"])
        runs = bench_all(todo, arguments, path, left)
    report = {
        "machine": machine,
        "tests": tests,
        "runs": [asdict(each) for each in runs],
        "profile": picture is not None,
        "no_profile": why,
        "seconds": time.perf_counter() - start,
    }
    if picture is not None:
        (arguments.out / "gpu-profile.svg").write_text(picture)
    (arguments.out / "gpu-report.json").write_text(json.dumps(report, indent=1) + "\n")
    (arguments.out / "gpu-report.md").write_text(markdown(report, runs))
    print(f"wrote {arguments.out / 'gpu-report.md'} and .json beside it")


if __name__ == "__main__":
    main(parse_arguments(Arguments, __doc__))
