"""Measures edbatch on a GPU, in less than eight minutes, and writes a report.

Runs the tests marked ``gpu``, then ``edbatch bench --train`` for some workloads, sizes
and systems, and profiles one minibatch. It installs nothing and needs no installation
of edbatch, only its dependencies; it writes ``gpu-report.json``, ``gpu-report.md`` and
``gpu-profile.svg``. What the time does not suffice for is named as not measured. On a
machine without a GPU it measures the CPU and says so. Run in a clone:

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arguments import option, parse_arguments

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
    out: Path = option(Path("."), "Where to write the report.")


@dataclass(frozen=True)
class Run:
    """One run of a benchmark.

    Attributes:
        workload: The workload.
        hidden: Length of its states.
        batch_size: Instances per minibatch.
        seconds: How long the run took, compilations included.
        result: What ``edbatch bench --json`` printed; None if nothing was measured.
        why: Why nothing was measured.
    """

    workload: str
    hidden: int
    batch_size: int
    seconds: float
    result: dict[str, Any] | None
    why: str = ""


def importable(folder: Path) -> str:
    """Makes a folder from which edbatch is imported without an installation.

    Args:
        folder: An empty folder.

    Returns:
        What ``PYTHONPATH`` is to begin with.
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
    """Runs Python; returns its exit status, or 124, and what it printed."""
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
        return 124, printed.decode(errors="replace"), "the time was over"
    return done.returncode, done.stdout, done.stderr


def describe(path: str) -> dict[str, Any]:
    """Says what runs: the device as JAX sees it, and versions."""
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
        return {"passed": None, "output": "pytest is not there, so no test was run"}
    words = ["-P", "-m", "pytest", "tests/executor/test_gpu.py", "-m", "gpu", "-q"]
    words += ["-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    status, out, err = python(words, path, seconds)
    # 5: no test was selected, or all were skipped at collection.
    lines = (out + err).splitlines()[-12:]
    return {"passed": status == 0, "output": "\n".join(lines)}


def bench(
    workload: str,
    hidden: int,
    batch_size: int,
    arguments: Arguments,
    path: str,
    seconds: float,
) -> Run:
    """Runs one benchmark, within some seconds."""
    if seconds < 5:
        why = "the time was over before it began"
        return Run(workload, hidden, batch_size, 0.0, None, why)
    words = ["-c", "from edbatch.cli.main import main; main()", "bench", "--train"]
    words += ["--json", "--policy", "greedy", "--systems", arguments.systems]
    words += ["--workload", workload, "--hidden", str(hidden)]
    words += ["--batch-size", str(batch_size), "--rounds", str(arguments.rounds)]
    words += ["--minibatches", str(arguments.minibatches)]
    start = time.perf_counter()
    status, out, err = python(words, path, seconds)
    took = time.perf_counter() - start
    if status:
        why = " ".join((err or out).split())[-300:]
        return Run(workload, hidden, batch_size, took, None, why)
    return Run(workload, hidden, batch_size, took, json.loads(out))


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
    """Profiles one minibatch; returns a picture as SVG, and why there is none."""
    first = [each.split(",")[0] for each in (arguments.workloads, arguments.hidden)]
    words = ["-c", _PROFILED, *first, arguments.batch_sizes.split(",")[0], str(folder)]
    status, out, err = python(words, path, seconds)
    traces = sorted(folder.rglob("*.trace.json.gz"))
    if status or not traces:
        return None, " ".join((err or out).split())[-300:] or "no trace was written"
    with gzip.open(traces[-1], "rt") as file:
        return draw(json.load(file)["traceEvents"]), ""


def draw(events: list[dict[str, Any]]) -> str:
    """Draws what ran on the device, or on the host where there is none, as SVG.

    Args:
        events: Events of a trace in Chrome's format.

    Returns:
        One row per thread or stream, the busiest first; a bar per event.
    """
    names: dict[Any, str] = {}
    for each in events:
        if each.get("ph") == "M" and each.get("name") == "process_name":
            names[each["pid"]] = each["args"]["name"]
    timed = [each for each in events if each.get("ph") == "X" and each.get("dur")]
    device = [each for each in timed if "device" in names.get(each["pid"], "")]
    rows: dict[Any, list[dict[str, Any]]] = {}
    for each in device or timed:
        rows.setdefault((each["pid"], each["tid"]), []).append(each)
    busiest = sorted(rows.values(), key=len, reverse=True)[:8]
    shown = [each for row in busiest for each in row]
    if not shown:
        return '<svg xmlns="http://www.w3.org/2000/svg"/>'
    start = min(each["ts"] for each in shown)
    length = max(each["ts"] + each["dur"] for each in shown) - start
    width, height = 1200, 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"'
        f' height="{height * len(busiest) + 30}" font-family="sans-serif">',
        f'<text x="4" y="16" font-size="13">{length / 1e3:.3f} ms,'
        f" {len(shown)} events</text>",
    ]
    for k, row in enumerate(busiest):
        for each in row:
            left = width * (each["ts"] - start) / length
            across = max(0.5, width * each["dur"] / length)
            hue = sum(map(ord, each["name"].split(".")[0])) * 47 % 360
            title = each["name"].replace("&", "&amp;").replace("<", "&lt;")
            parts.append(
                f'<rect x="{left:.2f}" y="{24 + k * height}" width="{across:.2f}"'
                f' height="{height - 4}" fill="hsl({hue},60%,55%)">'
                f"<title>{title} {each['dur']:.1f} µs</title></rect>"
            )
    return "\n".join([*parts, "</svg>\n"])


HEAD = (
    "| workload | hidden | batch | system | forward ms | gradient ms | to exact"
    " | compile s | compiles | % of peak | error |\n|" + " --- |" * 11
)


def markdown(report: dict[str, Any], runs: list[Run]) -> str:
    """Writes the report for people."""
    what = report["machine"]
    lines = [
        "# edbatch, measured on one device",
        "",
        f"{what['device']} ({what['platform']}), {what['cpus']} CPU cores, JAX"
        f" {what['jax']}, Python {what['python']}; {report['seconds']:.0f} seconds.",
        "",
    ]
    if what["platform"] == "cpu":
        lines += [
            "This machine has no GPU that JAX sees: these are times of a CPU.",
            "",
        ]
    lines += ["## Tests", "", "```text", report["tests"]["output"], "```", ""]
    lines += ["## Times per minibatch", "", HEAD]
    missing = []
    for run in runs:
        first = f"| {run.workload} | {run.hidden} | {run.batch_size} |"
        if run.result is None:
            missing.append(f"- {first.strip('| ').replace(' | ', ', ')}: {run.why}")
            continue
        for row in run.result["rows"]:
            train = row["train"] or {}
            cells = [
                row["system"],
                number(row["forward_ms"]),
                number(train.get("train_ms")),
                number(row["ratio_to_exact"]),
                number(row["compile_s"]),
                str(row["compiles"]),
                number(row["percent_of_peak"]),
                number(row["max_abs_error"]),
            ]
            lines.append(f"{first} {' | '.join(cells)} |")
        missing += [
            f"- {run.workload}, {name}: {why}"
            for name, why in run.result["left_out"].items()
        ]
    lines += ["", "## Not measured", "", *(missing or ["Nothing is missing."]), ""]
    lines += ["## One minibatch", ""]
    if report["profile"]:
        lines.append("![what ran on the device](gpu-profile.svg)")
    else:
        lines.append(f"There is no profile: {report['no_profile']}")
    return "\n".join([*lines, ""])


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def main(arguments: Arguments) -> None:
    start = time.perf_counter()

    def left() -> float:
        return arguments.seconds - (time.perf_counter() - start)

    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = importable(Path(folder))
        machine = describe(path)
        tests: dict[str, Any] = {"passed": None, "output": "not asked for"}
        if arguments.tests:
            tests = run_tests(path, min(90.0, left() / 4))
        sizes = [
            (workload, int(hidden), int(count))
            for hidden, count, workload in itertools.product(
                arguments.hidden.split(","),
                arguments.batch_sizes.split(","),
                arguments.workloads.split(","),
            )
        ]
        picture, why = profile(
            arguments, path, Path(folder) / "profile", min(60.0, left() / 4)
        )
        runs = []
        for k, size in enumerate(sizes):
            # What one run does not need is left to those after it.
            share = 1.5 * left() / (len(sizes) - k)
            runs.append(bench(*size, arguments, path, min(share, left())))
            print(f"{size}: {runs[-1].why or 'measured'}", flush=True)
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
