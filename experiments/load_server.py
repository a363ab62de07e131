"""The server's process in the load test, which runs the systems one at a time.

It makes the model, warms up all systems, and then handles the commands that the test's
process sends over a pipe. A run starts a system, accepts one connection, and ends when
the connection is closed.
"""

import gc
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import numpy as np
from load_models import ServedModel, load_model
from load_systems import (
    Continuous,
    OneByOne,
    System,
    Ticket,
    Window,
    answer_alone,
    note_first_values,
    of_tickets,
)
from load_wire import ANSWERED, FAILED, Answer, Reader, pack_answer

import edbatch as eb
from edbatch.compilation.settings import Tiers
from edbatch.compilation.worker import wait_for_compilations
from edbatch.graph.context import jitted_cells
from edbatch.policies.serving.choices import GREEDY, LARGEST, OLDEST, READY
from edbatch.policies.serving.heuristics import CELL_ROWS, ServingHeuristic

CONTINUOUS, ONE_BY_ONE = "continuous", "one by one"
# The idea of BatchMaker, for chains: run the cell whose nodes have been ready longest.
CELLS_FIRST_COME = "cells first come"
LEARNED = "learned"
# Serving heuristics, in waves of eight batches.
HEURISTICS = {"greedy": GREEDY, "largest": LARGEST, "oldest": OLDEST}
# The systems that run `edbatch.Server`.
SERVERS = (CONTINUOUS, CELLS_FIRST_COME, LEARNED, *HEURISTICS)
_CHAINS = ("lstm-nmt",)
_SWITCH_S = 2e-4  # switch interval of threads, as in `edbatch serve`
_PASSES = 12  # maximum number of warm-up passes
_CLEAN = 2  # consecutive passes without compilations that end the warm-up
_WAVE = 8
_LARGE = 10  # the largest tenth of the instances counts as large


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the server's process.

    Attributes:
        workload: The workload's name.
        hidden: Length of the model's states.
        instances: Number of different requests.
        windows_ms: Lengths of the windows.
        window_requests: Maximum number of requests in a window.
        max_in_flight: Option of `edbatch.Server`.
        policy: File of a serving policy to measure besides the default, or None.
        heuristics: Further serving policies to measure, keys of `HEURISTICS`.
        one_by_one: Whether one request at a time is measured, too.
        data: The folder of public data, or None.
        seed: Seed of parameters and instances.
        tiers: Which programs run, as for `edbatch.use_tiers`.
    """

    workload: str
    hidden: int
    instances: int
    windows_ms: tuple[float, ...]
    window_requests: int
    max_in_flight: int
    policy: Path | None
    heuristics: tuple[str, ...]
    one_by_one: bool
    data: Path | None
    seed: int
    tiers: Tiers = "fine"

    def system_names(self) -> list[str]:
        """Lists the names of the systems."""
        last = [ONE_BY_ONE] if self.one_by_one else []
        return [*self.servers(), *map(window_name, self.windows_ms), *last]

    def servers(self) -> dict[str, dict[str, Any]]:
        """Returns the options of each system that runs `edbatch.Server`, by name."""
        found: dict[str, dict[str, Any]] = {CONTINUOUS: {}}
        if self.workload in _CHAINS:
            policy = ServingHeuristic(CELLS_FIRST_COME, READY, max_rows=CELL_ROWS)
            found[CELLS_FIRST_COME] = {"policy": policy}
        if self.policy is not None:
            found[LEARNED] = {"policy": self.policy}
        for name in self.heuristics:
            policy = ServingHeuristic(name, HEURISTICS[name], wave=_WAVE)
            found[name] = {"policy": policy}
        return found


def window_name(window_ms: float) -> str:
    """Returns the name of a window system."""
    return f"window {window_ms:g} ms"


class Compilations:
    """Counts all XLA compilations in this process."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._note)

    def _note(self, event: str, seconds: float, **_: Any) -> None:
        self.count += event == "/jax/core/compile/backend_compile_duration"


class Systems:
    """All systems of one model, which share compiled programs.

    Args:
        settings: The settings.
        say: Prints a line of progress.
    """

    def __init__(self, settings: ServerSettings, say: Callable[[str], None]) -> None:
        self.settings, self._say = settings, say
        self.compilations = Compilations()
        self.served = load_model(
            settings.workload,
            settings.hidden,
            settings.instances,
            data=settings.data,
            seed=settings.seed,
        )
        model = of_tickets(self.served)
        # Separate, because a program for waves of many requests is slower for windows.
        self._continuous = eb.batch(model)
        self._windows = eb.batch(model, sizes=eb.Sizes(headroom=2.0))
        self._rng = np.random.default_rng(settings.seed)
        self.expected: list[bytes] = []

    def start(self, name: str) -> System:
        """Starts a system.

        Args:
            name: The system's name.

        Returns:
            The system, warmed up.
        """
        if name == ONE_BY_ONE:
            return OneByOne(self.served)
        if name in (servers := self.settings.servers()):
            return Continuous(
                self._continuous,
                self.served.params,
                max_waiting=10**6,
                max_in_flight=self.settings.max_in_flight,
                **servers[name],
            )
        [length] = [
            each for each in self.settings.windows_ms if window_name(each) == name
        ]
        most = self.settings.window_requests
        return Window(self._windows, self.served, length, most)

    def warm_up(self) -> None:
        """Compiles all programs: runs the instances until nothing is compiled."""
        start = time.monotonic()
        with jitted_cells():
            self.expected = [
                answer_alone(self.served, Ticket(each, _ignore))
                for each in self.served.instances
            ]
        self._report("the jitted cells", start)
        tickets = [Ticket(each, _ignore) for each in self.served.instances]
        server = self.start(CONTINUOUS)
        assert isinstance(server, Continuous), "it is the server"
        server.server.warm_up(tickets)
        server.close()
        for name in self.settings.servers():
            self._settle(name, partial(self._all_at_once, name))
        most = self.settings.window_requests
        # Waves use one program for minibatches of all sizes.
        sizes = [most] if self.served.asks else [2**k for k in range(most.bit_length())]
        self._windows.warm_up(tickets[: 2 * most], sizes, params=self.served.params)
        self._settle("windows", self._all_sizes)
        gc.collect()
        gc.freeze()  # long-lived objects need not be scanned

    def _settle(self, what: str, run: Callable[[], None]) -> None:
        start, clean = time.monotonic(), 0
        for _ in range(_PASSES):
            before = self.compilations.count
            run()
            wait_for_compilations()  # of the background thread
            clean = clean + 1 if self.compilations.count == before else 0
            if clean == _CLEAN:
                break
        self._report(what, start)

    def _report(self, what: str, start: float) -> None:
        seconds = time.monotonic() - start
        self._say(
            f"{what}: warm after {seconds:.0f} s,"
            f" {self.compilations.count} compilations so far"
        )

    def _all_at_once(self, name: str) -> None:
        """Keeps a server full, with requests at all stages and with large requests."""
        system = self.start(name)
        left = threading.Semaphore(0)
        most = 2 * self.settings.max_in_flight
        instances = [*self._draw(most), *self._draw(most, large=True)]
        for each in instances:
            system.submit(Ticket(each, lambda *_: left.release()))
        for _ in instances:
            left.acquire()
        system.close()

    def _all_sizes(self) -> None:
        """Runs minibatches of many sizes, of all requests and of large ones."""
        most = self.settings.window_requests
        for large in (True, False):
            for size in range(most, 0, -8 if large else -4):
                tickets = [Ticket(each, _ignore) for each in self._draw(size, large)]
                jax.block_until_ready(self._windows(self.served.params, tickets))

    def _draw(self, count: int, large: bool = False) -> list[Any]:
        """Draws instances, from all or from the large ones."""
        own = self.served.by_size
        if large:
            own = own[-max(1, len(own) // _LARGE) :]
        return [own[k] for k in self._rng.integers(len(own), size=count)]


def _ignore(ticket: Ticket, found: bytes | BaseException) -> None:
    """Ignores the answers of the warm-up."""


def serve_run(system: System, served: ServedModel, connection: socket.socket) -> None:
    """Lets a system serve a connection until the connection is closed.

    Args:
        system: The system.
        served: The model, for its instances.
        connection: The connection.
    """
    sending = threading.Lock()

    def answer(number: int, ticket: Ticket, found: bytes | BaseException) -> None:
        failed = isinstance(found, BaseException)
        content = repr(found).encode() if isinstance(found, BaseException) else found
        status = FAILED if failed else ANSWERED
        message = pack_answer(Answer(number, status, ticket.first_value, content))
        with suppress(OSError), sending:  # OSError: the client has hung up
            connection.sendall(message)

    reader = Reader(connection)
    while (requests := reader.requests()) is not None:
        system.submit_many(
            [
                Ticket(served.instances[instance], partial(answer, number))
                for number, instance in requests
            ]
        )


def main(settings: ServerSettings, control: Connection) -> None:
    """Makes a run of each system that is named over a pipe, until None is received.

    Args:
        settings: The settings.
        control: The pipe. A dict of facts is sent after the warm-up, and a dict of
            costs after each run.
    """
    say = partial(print, f"  {settings.workload} {settings.hidden}:", flush=True)
    note_first_values()
    sys.setswitchinterval(_SWITCH_S)
    with eb.use_tiers(settings.tiers), socket.create_server(("127.0.0.1", 0)) as door:
        systems = Systems(settings, say)
        systems.warm_up()
        control.send(
            {
                "address": door.getsockname(),
                "data": systems.served.data,
                "expected": systems.expected,
                "asks": systems.served.asks,
            }
        )
        while (name := control.recv()) is not None:
            control.send(_run(systems, name, door))


def _run(systems: Systems, name: str, door: socket.socket) -> dict[str, Any]:
    """Makes one run; returns its costs."""
    gc.collect()
    gc.freeze()  # objects of other systems, such as the windows' cached plans
    compiled, cpu_s = systems.compilations.count, time.process_time()
    system = systems.start(name)
    connection, _ = door.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # the test hangs up with answers in flight
            serve_run(system, systems.served, connection)
    system.close()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "compilations": systems.compilations.count - compiled,
        "cpu_s": time.process_time() - cpu_s,
        "largest_rss_bytes": usage.ru_maxrss * 1024,
    }
    if isinstance(system, Continuous):
        stats = asdict(system.server.stats())
        found["server"] = {
            key: stats[key]
            for key in ("waves", "nodes", "batches", "rows", "width", "slowest_turns")
        }
    return found
