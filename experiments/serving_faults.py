"""Does a server under load answer every good request rightly, whatever others do?

Requests come to an `edbatch.Server` by a Poisson process at 80% of its capacity, which
is measured first. One in a hundred is poisoned (the model raises at once, or after all
cells, or a word does not fit its dtype), one is cancelled, one oversized (`max_nodes`),
one has a deadline that expires, and of one the client hangs up (an event loop's task is
cancelled). Every ten seconds the parameters are swapped between two sets. A good
request's answer has to be that of the unbatched model under a set that was current
between its submission and its answer. In a clone, on an idle machine:

    python experiments/serving_faults.py --data ../shared/data --out faults
    python experiments/serving_faults.py --workloads tree-lstm --minutes 1

Exits with 1 if a good request failed or was lost, an answer is wrong, the server did
not drain, or memory grew. Requests that were refused, since too many waited, are
counted: a server that keeps up refuses none.
"""

import gc
import itertools
import json
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fault_clients import Clients
from faulty_requests import GOOD, Faulty, draw_kinds, oversized, poisoned, with_faults
from load_bench import percentiles
from load_models import ServedModel, encode_answer, load_model

import edbatch as eb
from edbatch.graph.context import jitted_cells

from arguments import option, parse_arguments

_PART = 4096  # requests that are drawn at once
_PATIENCE_S = 0.05  # the mean, of clients that give up
_DRAIN_S = 120.0
_PASSES = 6  # of warm-up, at most


@dataclass(frozen=True)
class Arguments:
    workloads: str = option("transition-parser", "Workloads to serve.")
    hidden: int = option(128, "Length of the models' states.")
    data: Path = option(Path("shared/data"), "Folder of public data; else sampled.")
    out: Path = option(Path("faults"), "Folder for results.")
    minutes: float = option(10.0, "How long, for each workload.")
    load_percent: float = option(80.0, "Of the measured capacity.")
    fault_percent: float = option(1.0, "Of each fault.")
    swap_s: float = option(10.0, "Seconds between two swaps of the parameters.")
    deadline_ms: float = option(1.0, "Of requests that have a deadline.")
    instances: int = option(256, "Different requests.")
    max_in_flight: int = option(256, "Requests that the server runs at once.")
    max_nodes: int = option(1000, "Calls of cells that a request may make at once.")
    capacity_s: float = option(10.0, "Seconds in which capacity is measured.")
    growth_percent: float = option(5.0, "By how much memory may grow.")
    traced: bool = option(False, "Whether Python's memory is traced, which is slow.")
    seed: int = option(0, "Seed of everything.")


class MemoryLog:
    """Notes the resident memory of this process, in a thread.

    Args:
        every_s: Seconds between two notes.

    Attributes:
        rss_bytes: The notes.
    """

    def __init__(self, every_s: float) -> None:
        self.rss_bytes: list[int] = []
        self._every_s, self._stop = every_s, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stop.set()
        self._thread.join()

    def growth_percent(self) -> float:
        """By how much the last quarter's median is above the second quarter's."""
        notes = np.array(self.rss_bytes, float)
        quarters = np.array_split(notes, 4)
        if len(notes) < 8:
            return 0.0
        before, after = np.median(quarters[1]), np.median(quarters[3])
        return float(100 * (after / before - 1))

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.rss_bytes.append(resident_bytes())


def resident_bytes() -> int:
    """Returns the resident memory of this process; 0 where Linux does not say so."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    [line] = [x for x in status.read_text().splitlines() if x.startswith("VmRSS")]
    return 1024 * int(line.split()[1])


class Trial:
    """A server and all that is done to it.

    Args:
        served: The model.
        own: The arguments.
    """

    def __init__(self, served: ServedModel, own: Arguments) -> None:
        self._served, self._own = served, own
        other = load_model(served.name, own.hidden, 1, seed=own.seed + 1)
        self._params = [served.params, other.params]
        self._expected = [self._alone(each) for each in self._params]
        self._batched = eb.batch(with_faults(served))
        self._rng = np.random.default_rng(own.seed)

    def _alone(self, params: Any) -> list[bytes]:
        """The answers of the unbatched model."""
        with jitted_cells():
            return [
                encode_answer(self._served.model(params, each))
                for each in self._served.instances
            ]

    def run(self) -> dict[str, Any]:
        """Runs all; returns what came of it, for JSON."""
        own = self._own
        server = self._server()
        server.warm_up([Faulty(each) for each in self._served.instances])
        self._settle(server)
        capacity = self._capacity(server)
        server.close()
        rate = 0.01 * own.load_percent * capacity
        print(f"  capacity {capacity:.1f}/s; {rate:.1f}/s are sent", flush=True)
        compiled = len(eb.compile_report())
        server = self._server()
        clients = Clients(server, self._served, self._expected, own.deadline_ms)
        memory, traced = MemoryLog(min(1.0, 0.6 * own.minutes)), []
        if own.traced:  # in the second half no object is new for good
            tracemalloc.start()
        for _ in range(2):
            self._send_all(clients, server, rate, 30 * own.minutes)
            if own.traced:
                clients.wait(_DRAIN_S)
                traced.append(_traced_bytes())
        drained = server.drain(_DRAIN_S)
        clients.close()
        memory.close()
        tracemalloc.stop()
        outcomes, stats = clients.outcomes, server.stats()
        different = sum(a != b for a, b in zip(*self._expected, strict=True))
        return {
            "workload": self._served.name,
            "hidden": own.hidden,
            "data": self._served.data,
            "capacity": capacity,
            "rate": rate,
            "sent": dict(outcomes.sent),
            "ended": {f"{kind}: {end}": n for (kind, end), n in outcomes.ended.items()},
            "wrong": outcomes.count("wrong answer"),
            "failed_otherwise": outcomes.count("failed otherwise"),
            "refused": outcomes.count("refused"),
            "lost": outcomes.lost,
            "problems": outcomes.problems,
            "swaps": clients.swaps,
            "instances_whose_answers_differ_between_sets": different,
            "latency_ms": percentiles(1e3 * np.array(outcomes.latency_s or [np.inf])),
            "compilations": len(eb.compile_report()) - compiled,
            "drained": drained and not stats.waiting and not stats.in_flight,
            "stats": asdict(stats),
            "rss_bytes": memory.rss_bytes,
            "rss_growth_percent": memory.growth_percent(),
            "traced_bytes": traced,
            "settings": {key: str(value) for key, value in asdict(own).items()},
        }

    def _server(self) -> eb.Server:
        return eb.Server(
            self._batched,
            self._params[0],
            max_waiting=8192,
            max_in_flight=self._own.max_in_flight,
            max_nodes=self._own.max_nodes,
        )

    def _settle(self, server: eb.Server) -> None:
        """Lets a server meet all that comes, until it compiles nothing more."""
        instances = self._served.instances
        large = list(self._served.by_size[-8:])
        bad = [oversized(instances[0]), *(poisoned(instances[0], k) for k in range(3))]
        for _ in range(_PASSES):
            before = len(eb.compile_report())
            some = [*instances, *instances, *large * (self._own.max_in_flight // 4)]
            requests = [*bad, *(Faulty(each) for each in some)]
            futures = [server.submit_nowait(each) for each in requests]
            for each in futures:
                each.exception()
            if len(eb.compile_report()) == before:
                return

    def _capacity(self, server: eb.Server) -> float:
        """Answers per second while as many requests run as may."""
        left = threading.Semaphore(2 * self._own.max_in_flight)
        start = time.monotonic()
        warm, end = start + 0.3 * self._own.capacity_s, start + self._own.capacity_s
        begun, before = start, server.stats().answered
        for number in itertools.count():
            left.acquire()
            if (now := time.monotonic()) >= end:
                break
            if now < warm:
                begun, before = now, server.stats().answered
            instance = self._served.instances[number % len(self._served.instances)]
            future = server.submit_nowait(Faulty(instance))
            future.add_done_callback(lambda _: left.release())
        return max(1.0, (server.stats().answered - before) / (time.monotonic() - begun))

    def _send_all(
        self, clients: Clients, server: eb.Server, rate: float, seconds: float
    ) -> None:
        """Sends requests at their times, and swaps parameters."""
        own = self._own
        due = time.monotonic()
        end, swap_at = due + seconds, due + own.swap_s
        for kind, number, wait, patience in self._draw(rate):
            due += wait
            if due >= end:
                return
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            if due >= swap_at:
                swap_at += own.swap_s
                clients.swaps += 1  # first, as its answers may come at once
                server.swap_params(self._params[clients.swaps % len(self._params)])
            clients.send(kind, number, due, patience)

    def _draw(self, rate: float) -> Iterator[tuple[str, int, float, float]]:
        """Draws requests: kind, instance, seconds until it comes, and its patience."""
        rng, count = self._rng, len(self._served.instances)
        while True:
            yield from zip(
                draw_kinds(rng, _PART, self._own.fault_percent).tolist(),
                rng.integers(count, size=_PART).tolist(),
                rng.exponential(1 / rate, _PART).tolist(),
                rng.exponential(_PATIENCE_S, _PART).tolist(),
                strict=True,
            )


def _traced_bytes() -> int:
    """What Python's objects take, if that is traced."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def is_fine(found: dict[str, Any], growth_percent: float) -> bool:
    """Whether all went as it should.

    Args:
        found: What came of a trial.
        growth_percent: By how much memory may have grown.
    """
    bad = found["wrong"] + found["failed_otherwise"] + found["lost"]
    grew = found["rss_growth_percent"] > growth_percent
    return not bad and not grew and bool(found["drained"])


def table(results: Sequence[dict[str, Any]]) -> str:
    """Returns what came of trials, as Markdown."""
    lines = [
        "| | sent | good, all answered rightly | wrong | failed otherwise | lost"
        " | refused | swaps | p50 / p99 ms | memory | drained |",
        "| --- |" + " --- |" * 10,
    ]
    for found in results:
        good = found["sent"].get(GOOD, 0)
        answered = found["ended"].get(f"{GOOD}: answered", 0)
        latency = [found["latency_ms"][key] for key in ("p50", "p99")]
        cells = [
            f"`{found['workload']}`, hidden {found['hidden']},"
            f" {found['rate']:.0f} requests/s",
            f"{sum(found['sent'].values()):,}",
            f"{answered:,} of {good:,}",
            *(str(found[key]) for key in ("wrong", "failed_otherwise", "lost")),
            *(str(found[key]) for key in ("refused", "swaps")),
            " / ".join("∞" if each is None else f"{each:.0f}" for each in latency),
            f"{found['rss_growth_percent']:+.1f}%",
            "yes" if found["drained"] else "no",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Runs trials, and writes files; returns 1 if something went wrong."""
    own = parse_arguments(Arguments, __doc__, words)
    own.out.mkdir(parents=True, exist_ok=True)
    results = []
    for name in own.workloads.split(","):
        print(f"{name}, hidden {own.hidden}", flush=True)
        data = own.data if own.data.is_dir() else None
        served = load_model(name, own.hidden, own.instances, data=data, seed=own.seed)
        with eb.use_tiers("fine"):
            found = Trial(served, own).run()
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
