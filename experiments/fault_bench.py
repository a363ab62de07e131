"""The fault test of one model: starts the server's process and runs trials on it."""

import multiprocessing
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fault_clients import Clients, Draw
from fault_server import FaultSettings
from fault_server import main as serve
from faulty_requests import draw_kinds
from load_bench import percentiles

from arguments import option

_PART = 4096  # requests that are drawn at once
_PATIENCE_S = 0.05  # mean time until a client gives up
_DRAIN_S = 120.0
_WARM_UP_S = 1800.0  # maximum time until a server is ready


@dataclass(frozen=True)
class Arguments:
    workloads: str = option(
        "tree-lstm,lstm-nmt,transition-parser", "Workloads to serve."
    )
    hidden: int = option(128, "Length of the models' states.")
    data: Path = option(
        Path("shared/data"),
        "Folder of public data; instances are sampled without it.",
    )
    out: Path = option(Path("faults"), "Folder for results.")
    minutes: float = option(10.0, "Minutes for each workload.")
    budget_min: float = option(
        0.0, "Minutes for all, warm-up included, shared out evenly; 0 for no bound."
    )
    load_percent: float = option(80.0, "Load, in percent of the measured capacity.")
    fault_percent: float = option(1.0, "Requests with each fault, in percent.")
    swap_s: float = option(10.0, "Seconds between two swaps of the parameters.")
    deadline_ms: float = option(1.0, "Of requests that have a deadline.")
    instances: int = option(256, "Different requests.")
    max_in_flight: int = option(256, "Requests that the server runs at once.")
    max_nodes: int = option(1000, "Calls of cells that a request may make at once.")
    capacity_s: float = option(10.0, "Seconds in which capacity is measured.")
    growth_percent: float = option(5.0, "Allowed growth of memory, in percent.")
    traced: bool = option(False, "Whether Python's memory is traced, which is slow.")
    seed: int = option(0, "Seed of everything.")


class MemoryLog:
    """Samples the resident memory of a process, in a thread.

    Args:
        every_s: Seconds between two samples.
        pid: The process; by default this process.

    Attributes:
        rss_bytes: The samples.
    """

    def __init__(self, every_s: float, pid: int | None = None) -> None:
        self.rss_bytes: list[int] = []
        self._pid = pid
        self._every_s, self._stop = every_s, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops the thread."""
        self._stop.set()
        self._thread.join()

    def growth_percent(self) -> float:
        """Returns the growth of the median from the second to the last quarter."""
        notes = np.array(self.rss_bytes, float)
        quarters = np.array_split(notes, 4)
        if len(notes) < 8:
            return 0.0
        before, after = np.median(quarters[1]), np.median(quarters[3])
        return float(100 * (after / before - 1))

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.rss_bytes.append(resident_bytes(self._pid))


def resident_bytes(pid: int | None = None) -> int:
    """Returns a process's resident memory; 0 if `/proc` does not report it.

    Args:
        pid: The process; by default this process.
    """
    status = Path(f"/proc/{pid or 'self'}/status")
    if not status.exists():
        return 0
    lines = [x for x in status.read_text().splitlines() if x.startswith("VmRSS")]
    return 1024 * int(lines[0].split()[1]) if lines else 0


class Bench:
    """The process that serves one model, and the runs against it.

    Args:
        workload: The workload's name.
        own: The arguments.
    """

    def __init__(self, workload: str, own: Arguments) -> None:
        self._workload, self._own = workload, own
        self._rng = np.random.default_rng(own.seed)
        settings = FaultSettings(
            workload=workload,
            hidden=own.hidden,
            instances=own.instances,
            data=own.data if own.data.is_dir() else None,
            max_in_flight=own.max_in_flight,
            max_nodes=own.max_nodes,
            deadline_ms=own.deadline_ms,
            traced=own.traced,
            seed=own.seed,
        )
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(settings, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        self._ready = self._receive(_WARM_UP_S)

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # if it has ended
            self._control.send(None)
        self._process.join(30)
        if self._process.is_alive():
            self._process.terminate()

    def _receive(self, limit_s: float) -> Any:
        """Waits for a message of the process, as long as the process lives."""
        end = time.monotonic() + limit_s
        while not self._control.poll(0.2):
            if not self._process.is_alive() or time.monotonic() > end:
                raise RuntimeError(
                    f"the server of {self._workload} has ended or hangs; its messages"
                    " are above"
                )
        return self._control.recv()

    def _start(self) -> tuple[Clients, socket.socket]:
        """Starts a server and connects to it."""
        self._control.send("start")
        address = self._receive(60)
        connection = socket.create_connection(self._ready["address"])
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        clients = Clients(
            connection, address, self._ready["expected"], asks=self._ready["asks"]
        )
        return clients, connection

    def _end(self, connection: socket.socket) -> dict[str, Any]:
        """Hangs up; returns the server process's facts about the run."""
        connection.close()
        self._control.send("end")
        facts: dict[str, Any] = self._receive(120)
        return facts

    def capacity(self) -> float:
        """Measures requests per second, of all kinds, with the server always full."""
        own = self._own
        clients, connection = self._start()
        outstanding, draw = 2 * own.max_in_flight, self._draw(1.0)
        start = time.monotonic()
        warm, end = start + 0.3 * own.capacity_s, start + own.capacity_s
        begun, before, now = start, 0, start
        while (now := time.monotonic()) < end:
            if now < warm:
                begun, before = now, sum(clients.outcomes.ended.values())
            while clients.in_flight_now < outstanding:
                kind, instance, _, patience_s = next(draw)
                clients.send(kind, instance, now, patience_s)
            left = clients.in_flight_now
            clients.receive(lambda n=left: clients.in_flight_now < n, 0.5)
        ended = sum(clients.outcomes.ended.values()) - before
        found = ended / (now - begun)
        clients.close()
        self._end(connection)
        return max(1.0, found)

    def trial(self, rate: float, minutes: float) -> dict[str, Any]:
        """Serves good and faulty requests.

        Args:
            rate: Requests per second.
            minutes: Length of the trial.

        Returns:
            The results, for JSON.
        """
        own = self._own
        clients, connection = self._start()
        memory = MemoryLog(min(1.0, 0.6 * minutes), self._process.pid)
        traced = []
        # After the first part no new object stays alive, except when more requests are
        # in flight than ever before, which may happen in any part.
        parts = 4 if own.traced else 1
        for _ in range(parts):
            clients.run(self._draw(rate), 60 * minutes / parts, own.swap_s)
            if own.traced:
                clients.receive(clients.all_ended, _DRAIN_S)
                traced.append(self._ask("traced", clients))
        clients.receive(clients.no_hang_ups_pending, _DRAIN_S)
        # A request on the wire while the server is drained would be refused.
        end = time.monotonic() + _DRAIN_S
        while self._ask("handled", clients) < clients.messages:
            if time.monotonic() > end:
                break
        drained = self._ask(_DRAIN_S, clients)
        clients.receive(clients.all_ended, 10.0)
        memory.close()
        lost = clients.outcomes.lost
        clients.close()
        facts = self._end(connection)
        outcomes, stats = clients.outcomes, facts["stats"]
        one, other = self._ready["expected"]
        return {
            "workload": self._workload,
            "hidden": own.hidden,
            "data": self._ready["data"],
            "minutes": minutes,
            "rate": rate,
            "sent": dict(outcomes.sent),
            "ended": {f"{kind}: {end}": n for (kind, end), n in outcomes.ended.items()},
            "wrong": outcomes.count("wrong answer"),
            "failed_otherwise": outcomes.count("failed otherwise"),
            "refused": outcomes.count("refused"),
            "lost": lost,
            "problems": outcomes.problems,
            "swaps": clients.swaps,
            "instances_whose_answers_differ_between_sets": sum(
                a != b for a, b in zip(one, other, strict=True)
            ),
            "latency_ms": _milliseconds(outcomes.latency_s),
            "late_sends_ms": _milliseconds(outcomes.late_sends_s),
            "compilations": facts["compilations"],
            "drained": drained and not stats["waiting"] and not stats["in_flight"],
            "stats": stats,
            "rss_bytes": memory.rss_bytes,
            "rss_growth_percent": memory.growth_percent(),
            "traced_bytes": traced,
            "settings": {key: str(value) for key, value in asdict(own).items()},
        }

    def _ask(self, what: Any, clients: Clients) -> Any:
        """Asks the process for something; receives answers of requests meanwhile."""
        self._control.send(what)
        clients.receive(self._control.poll, 2 * _DRAIN_S)
        return self._receive(1.0)

    def _draw(self, rate: float) -> Draw:
        """Draws requests: kind, instance, seconds after the previous one, patience."""
        rng, count = self._rng, self._own.instances
        while True:
            yield from zip(
                draw_kinds(rng, _PART, self._own.fault_percent).tolist(),
                rng.integers(count, size=_PART).tolist(),
                rng.exponential(1 / rate, _PART).tolist(),
                rng.exponential(_PATIENCE_S, _PART).tolist(),
                strict=True,
            )


def _milliseconds(seconds: Sequence[float]) -> dict[str, float | None]:
    return percentiles(1e3 * np.array(seconds or [np.inf]))
