"""Does a server under load answer every good request correctly despite faulty ones?

Requests are sent to an `edbatch.Server` as a Poisson process at 80% of its capacity,
which is measured first, with the same requests. The server runs in one process
(`fault_server.py`) and its clients in another (`fault_clients.py`), so that they do not
compete for locks. Of a hundred requests, one is poisoned (the model raises at once, or
after all cells, or a word does not fit its dtype), one is cancelled, one is oversized
(`max_nodes`), one has a deadline that expires, and for one the client hangs up (it
closes its connection, and an event loop's task is cancelled). Every ten seconds the
parameters are swapped between two sets. The answer to a good request must equal the
unbatched model's answer for a set that was current between its submission and its
answer. In a clone, on an idle machine:

    python experiments/serving_faults.py --data ../shared/data --out faults
    python experiments/serving_faults.py --workloads tree-lstm --minutes 1
    python experiments/serving_faults.py --data ../shared/data --budget-min 36

The last command divides 36 minutes among the workloads, warm-up included. The folder
gets a JSON file for each workload, and `table.md` of all. The script exits with 1 if a
good request failed or was lost, an answer is wrong, the server did not drain, or memory
grew. Requests refused because too many were waiting are counted; a server that keeps up
refuses none.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from fault_bench import Arguments, Bench
from faulty_requests import GOOD

from arguments import parse_arguments

_LEAST_MINUTES = 0.5  # minimum length of a trial, even if the budget is used up
_END_MINUTES = 0.3  # reserved for draining and shutdown


def is_fine(found: dict[str, Any], growth_percent: float) -> bool:
    """Whether a trial succeeded.

    Args:
        found: The results of the trial.
        growth_percent: Allowed growth of memory.
    """
    bad = found["wrong"] + found["failed_otherwise"] + found["lost"]
    grew = found["rss_growth_percent"] > growth_percent
    return not bad and not grew and bool(found["drained"])


def table(results: Sequence[dict[str, Any]]) -> str:
    """Returns the results of trials as a Markdown table."""
    lines = [
        "| | sent | good, all answered rightly | wrong | failed otherwise | lost"
        " | refused | swaps | p50 / p99 ms | sent late, p99 ms | memory | drained |",
        "| --- |" + " --- |" * 11,
    ]
    for found in results:
        good = found["sent"].get(GOOD, 0)
        answered = found["ended"].get(f"{GOOD}: answered", 0)
        latency = [found["latency_ms"][key] for key in ("p50", "p99")]
        late = found["late_sends_ms"]["p99"]
        cells = [
            f"`{found['workload']}`, hidden {found['hidden']},"
            f" {found['minutes']:.1f} min, {found['rate']:,.0f} requests/s",
            f"{sum(found['sent'].values()):,}",
            f"{answered:,} of {good:,}",
            *(str(found[key]) for key in ("wrong", "failed_otherwise", "lost")),
            *(str(found[key]) for key in ("refused", "swaps")),
            " / ".join("∞" if each is None else f"{each:.0f}" for each in latency),
            "-" if late is None else f"{late:.1f}",
            f"{found['rss_growth_percent']:+.1f}%",
            "yes" if found["drained"] else "no",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def measure(workload: str, own: Arguments, end: float) -> dict[str, Any]:
    """Measures a workload's capacity and makes a trial.

    Args:
        workload: The workload's name.
        own: The arguments.
        end: Time at which all of this should end, by `time.monotonic`.

    Returns:
        The results of the trial, for JSON.
    """
    with Bench(workload, own) as bench:
        capacity = bench.capacity()
        rate = 0.01 * own.load_percent * capacity
        left = (end - time.monotonic()) / 60 - _END_MINUTES
        minutes = min(own.minutes, max(_LEAST_MINUTES, left))
        print(
            f"  capacity {capacity:.1f}/s; {rate:.1f}/s are sent for {minutes:.2f} min",
            flush=True,
        )
        return {**bench.trial(rate, minutes), "capacity": capacity}


def main(words: Sequence[str] | None = None) -> int:
    """Runs the trials and writes the files; returns 1 if a trial failed."""
    own = parse_arguments(Arguments, __doc__, words)
    own.out.mkdir(parents=True, exist_ok=True)
    names, results = own.workloads.split(","), []
    last = time.monotonic() + 60 * own.budget_min if own.budget_min else np.inf
    for done, name in enumerate(names):
        print(f"{name}, hidden {own.hidden}", flush=True)
        now = time.monotonic()
        share = now + (last - now) / (len(names) - done)
        found = measure(name, own, share)
        results.append(found)
        path = own.out / f"{name}-{own.hidden}.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        for each in found["problems"]:
            print(f"  {each}")
        (own.out / "table.md").write_text(table(results))
    print(table(results))
    return 0 if all(is_fine(each, own.growth_percent) for each in results) else 1


if __name__ == "__main__":
    sys.exit(main())
