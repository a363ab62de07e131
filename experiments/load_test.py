r"""How long do requests wait for their answers, under how much load?

A server process serves one model with several systems, one after the other
(`load_systems.py`). This process sends requests over the loopback address, as a Poisson
process, whether or not they are answered (`load_generator.py`), and counts latency from
their intended times. It first measures the capacity of each system, with requests
always waiting; then latencies at shares of the best window's capacity (for one by one:
of its own capacity); then it searches for the highest load at which the 99th percentile
stays below a limit. In a clone, on an idle machine, with public data in a folder:

    pip install -e ".[plot]"
    python experiments/load_test.py --data ../shared/data --out load
    python experiments/load_test.py --workloads tree-lstm --hidden 128 --out load

To compare serving policies with heuristics, in 12 minutes (`serving_policies/` contains
policies trained for these models; its README says how):

    python experiments/load_test.py --data ../shared/data --out learned --hidden 128 \
        --policies experiments/serving_policies --heuristics greedy,largest,oldest \
        --windows 5 --no-one-by-one --seconds 4 --steps 0 --budget-min 12

The folder gets a JSON file and pictures for each model, and `tables.md` of all models.
Parameters are not trained. Every answer is compared with the unbatched model's, and
compilations during runs are counted; there should be no differences and no
compilations.
"""

import json
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from load_bench import Bench, Point
from load_models import MODELS
from load_report import draw, write_tables
from load_server import CONTINUOUS, ONE_BY_ONE, SERVERS, ServerSettings

from edbatch.compilation.settings import check_tiers

from arguments import option, parse_arguments

# The second limit, as a multiple of the latency of a single request in "one by one"; it
# is used only if it is above the given limit.
_LONG = 4.0
_CLOSE = 1.06  # ratio of two loads at which the search between them ends


@dataclass(frozen=True)
class Arguments:
    workloads: str = option(
        "tree-lstm,lstm-nmt,transition-parser", "Workloads to serve."
    )
    hidden: str = option("128,256", "Lengths of the models' states.")
    data: Path = option(
        Path("shared/data"),
        "Folder of public data; instances are sampled without it.",
    )
    out: Path = option(Path("load"), "Folder for results.")
    windows: str = option("2,5,10", "Lengths of windows, in milliseconds.")
    window_requests: int = option(64, "Requests that fit into a window.")
    shares: str = option("30,50,70,90", "Loads, in percent of a capacity.")
    seconds: float = option(5.0, "Length of a run.")
    max_requests: int = option(30_000, "Requests of a run at most.")
    steps: int = option(5, "Runs to search for the load at a limit.")
    limit_ms: float = option(50.0, "Limit of the 99th percentile.")
    instances: int = option(512, "Different requests.")
    max_in_flight: int = option(256, "Requests that eb.Server runs at once.")
    budget_min: float = option(
        40.0, "Minutes for all; later loads and searches are left out."
    )
    policies: str = option(
        "",
        "Serving policies to measure, such as tree-lstm=a.json,lstm-nmt=b.json, or a"
        " folder of tree-lstm.json and so on.",
    )
    heuristics: str = option(
        "", "Policies to measure as well: any of greedy, largest, oldest."
    )
    one_by_one: bool = option(True, "Whether to measure one request at a time, too.")
    seed: int = option(0, "Seed of parameters, instances and times.")
    tiers: str = option("fine", "Programs that run; coarse ones compile sooner.")


class Test:
    """The runs against one model.

    Args:
        bench: The bench that makes the runs.
        own: The arguments.
        end: Time after which no further load or search begins, by `time.monotonic`.
    """

    def __init__(self, bench: Bench, own: Arguments, end: float) -> None:
        self._bench, self._own, self._end = bench, own, end
        self.points: list[Point] = []

    def run(self) -> dict[str, Any]:
        """Makes all runs.

        Returns:
            The measurements, for JSON.
        """
        bench, own = self._bench, self._own
        names = bench.settings.system_names()
        single = [each for each in (CONTINUOUS, ONE_BY_ONE) if each in names]
        alone = {name: bench.alone_ms(name) for name in single}
        capacity = {name: bench.capacity(name) for name in names}
        rates = {name: found for name, (found, _) in capacity.items()}
        windows = [each for each in names if each not in (*SERVERS, ONE_BY_ONE)]
        standard = max(rates[each] for each in windows)
        for share in map(float, own.shares.split(",")):
            if self.points and time.monotonic() > self._end:
                break
            for name in names:
                of = rates[name] if name == ONE_BY_ONE else standard
                self._measure(name, 0.01 * share * of)
        limits = [own.limit_ms]
        if (longer := _LONG * alone.get(ONE_BY_ONE, 0.0)) > own.limit_ms:
            limits.append(longer)
        found = {
            f"{limit:.1f}": {name: self.search(name, limit, rates) for name in names}
            for limit in limits
        }
        return {
            "alone_ms": alone,
            "capacity": rates,
            "capacity_facts": {name: facts for name, (_, facts) in capacity.items()},
            "standard_capacity": standard,
            "highest_load": found,
            "discarded_runs": bench.discarded,
            "points": [asdict(each) for each in self.points],
        }

    def search(
        self, name: str, limit_ms: float, capacity: dict[str, float]
    ) -> float | None:
        """Searches for the highest load at which the 99th percentile keeps a limit.

        Args:
            name: The system.
            limit_ms: The limit.
            capacity: The capacity of each system.

        Returns:
            Requests per second; None if no tried load keeps the limit.
        """
        low, high = self._bounds(name, limit_ms)
        for _ in range(self._own.steps):
            if time.monotonic() > self._end:
                break
            if low is None:
                rate = 0.5 * (high or capacity[name])
            elif high is None:
                rate = max(1.15 * low, 0.95 * capacity[name])
            elif high / low < _CLOSE:
                break
            else:
                rate = math.sqrt(low * high)
            self._measure(name, rate)
            low, high = self._bounds(name, limit_ms)
        return low

    def _bounds(self, name: str, limit_ms: float) -> tuple[float | None, float | None]:
        """Returns the highest load that kept the limit, and the next that did not."""
        own = [each for each in self.points if each.system == name]
        kept = [each.rate for each in own if each.keeps(limit_ms)]
        low = max(kept, default=None)
        missed = [
            each.rate
            for each in own
            if not each.keeps(limit_ms) and each.rate > (low or 0.0)
        ]
        return low, min(missed, default=None)

    def _measure(self, name: str, rate: float) -> None:
        self.points.append(self._bench.point(name, rate))


def _policy_of(policies: str, workload: str) -> Path | None:
    """Returns the policy file named for a workload, or found for it in a folder."""
    if policies and "=" not in policies:
        if not Path(policies).is_dir():
            raise SystemExit(f"--policies names a folder but there is no {policies}")
        path = Path(policies) / f"{workload}.json"
        return path if path.exists() else None
    named = dict(each.split("=", 1) for each in policies.split(",") if each)
    if unknown := sorted(named.keys() - MODELS.keys()):
        raise SystemExit(
            f"--policies names {', '.join(unknown)}, but models that can be served are"
            f" {', '.join(MODELS)}"
        )
    return Path(named[workload]) if workload in named else None


def measure(own: Arguments, workload: str, hidden: int, end: float) -> dict[str, Any]:
    """Measures one model.

    Args:
        own: The arguments.
        workload: The workload's name.
        hidden: Length of the model's states.
        end: Time after which no further load or search begins, by `time.monotonic`.

    Returns:
        The measurements, for JSON.
    """
    start = time.monotonic()
    settings = ServerSettings(
        workload=workload,
        hidden=hidden,
        instances=own.instances,
        windows_ms=tuple(map(float, own.windows.split(","))),
        window_requests=own.window_requests,
        max_in_flight=own.max_in_flight,
        policy=_policy_of(own.policies, workload),
        heuristics=tuple(each for each in own.heuristics.split(",") if each),
        one_by_one=own.one_by_one,
        data=own.data if own.data.is_dir() else None,
        seed=own.seed,
        tiers=check_tiers("tiers", own.tiers),
    )
    with Bench(
        settings,
        seconds=own.seconds,
        max_requests=own.max_requests,
        limit_ms=own.limit_ms,
        say=partial(print, f"  {workload} {hidden}:", flush=True),
    ) as bench:
        found = Test(bench, own, end).run()
        data = bench.data
    return {
        "workload": workload,
        "hidden": hidden,
        "data": data,
        "limit_ms": own.limit_ms,
        "seconds": time.monotonic() - start,
        "python": platform.python_version(),
        "settings": {key: str(value) for key, value in asdict(own).items()},
        **found,
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measures all models and writes the files."""
    own = parse_arguments(Arguments, __doc__, words)
    own.out.mkdir(parents=True, exist_ok=True)
    pairs = [
        (workload, int(hidden))
        for workload in own.workloads.split(",")
        for hidden in own.hidden.split(",")
    ]
    begun, results = time.monotonic(), []
    for done, (workload, hidden) in enumerate(pairs, 1):
        print(f"{workload}, hidden {hidden} ({done} of {len(pairs)})", flush=True)
        end = begun + 60 * own.budget_min * done / len(pairs)
        found = measure(own, workload, hidden, end)
        results.append(found)
        stem = own.out / f"{workload}-{hidden}"
        stem.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
        draw(found, stem)
        write_tables(results, own.out / "tables.md")
        print(f"  took {found['seconds']:.0f} s", flush=True)
    print((own.out / "tables.md").read_text())


if __name__ == "__main__":
    main()
