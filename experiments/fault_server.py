"""The server's process in the fault test.

Requests arrive over one TCP connection on the loopback address (`fault_wire.py`).
Requests whose clients hang up arrive over separate connections, served by an event
loop. The test's process controls over a pipe when a server starts, drains and ends.
"""

import asyncio
import gc
import socket
import sys
import threading
import time
import tracemalloc
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fault_wire import (
    CANCEL,
    CANCELLATION,
    FAULT,
    KINDS,
    REFUSED,
    SWAP,
    failure_content,
)
from faulty_requests import LATE, OVERSIZED, POISONED, Faulty, oversized, poisoned
from faulty_requests import with_faults as faulty
from load_models import ServedModel, encode_answer, load_model
from load_wire import ANSWERED, FAILED, Answer, Reader, pack_answer

import edbatch as eb
from edbatch.graph.context import jitted_cells

_SWITCH_S = 2e-4  # switch interval of threads, as in `edbatch serve`
_PASSES = 6  # maximum number of warm-up passes
_OVERSIZED = 8  # different requests that are too large
_SETTLE_S, _PAUSE_S = 60.0, 0.2  # maximum time until nothing runs; between two checks


@dataclass(frozen=True)
class FaultSettings:
    """Settings of the server's process.

    Attributes:
        workload: The workload's name.
        hidden: Length of the model's states.
        instances: Number of different requests.
        data: The folder of public data, or None.
        max_in_flight: Option of `edbatch.Server`.
        max_nodes: Option of `edbatch.Server`.
        deadline_ms: Deadline of requests that have one.
        traced: Whether Python's memory is traced.
        seed: Seed of parameters and instances.
    """

    workload: str
    hidden: int
    instances: int
    data: Path | None
    max_in_flight: int
    max_nodes: int
    deadline_ms: float
    traced: bool
    seed: int


class RequestHandler:
    """Passes the messages of connections on to a server.

    Args:
        server: The server.
        served: The model.
        params: The sets of parameters, which alternate.
        deadline_ms: Deadline of requests that have one.

    Attributes:
        handled: Number of messages that `serve` has read from its connection.
    """

    def __init__(
        self, server: eb.Server, served: ServedModel, params: Any, deadline_ms: float
    ) -> None:
        self.server, self._served = server, served
        self._params, self._deadline_ms = params, deadline_ms
        # Made in advance: making one takes as long as serving many good requests.
        few = served.instances[:_OVERSIZED]
        self._oversized = [oversized(each) for each in few]
        self.handled = 0
        self._swaps = 0
        self._sending = threading.Lock()
        self._futures: dict[int, Future[Any]] = {}  # of requests to be cancelled

    def serve(self, connection: socket.socket) -> None:
        """Handles the messages of a connection until it is closed."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = Reader(connection, FAULT)
        while (requests := reader.requests()) is not None:
            for number, action, instance in requests:
                if action == SWAP:
                    self._swaps += 1
                    sets = self._params
                    self.server.swap_params(sets[self._swaps % len(sets)])
                elif action == CANCEL:
                    if (future := self._futures.pop(number, None)) is not None:
                        future.cancel()
                else:
                    self._submit(connection, number, action, instance)
                self.handled += 1

    def _submit(
        self, connection: socket.socket, number: int, action: int, instance: int
    ) -> None:
        kind = KINDS[action]
        request = self.request(kind, number, instance)
        deadline_ms = self._deadline_ms if kind == LATE else None
        try:
            future = self.server.submit_nowait(request, deadline_ms=deadline_ms)
        except eb.EdbatchError as error:
            self._send(connection, answer_of(number, error))
            return
        if kind == KINDS[CANCELLATION]:
            self._futures[number] = future
        future.add_done_callback(partial(self._ended, connection, number))

    def request(self, kind: str, number: int, instance: int) -> Faulty:
        """Makes a request of a kind, with its fault."""
        if kind == OVERSIZED:
            return self._oversized[instance % len(self._oversized)]
        content = self._served.instances[instance]
        return poisoned(content, number) if kind == POISONED else Faulty(content)

    def _ended(
        self, connection: socket.socket, number: int, future: "Future[Any]"
    ) -> None:
        self._futures.pop(number, None)
        if future.cancelled():
            found: Any = Answer(number, CANCELLATION, 0.0, b"")
        else:
            found = answer_of(number, future.exception() or future.result())
        self._send(connection, found)

    def _send(self, connection: socket.socket, answer: Answer) -> None:
        with suppress(OSError), self._sending:  # OSError: the client has hung up
            connection.sendall(pack_answer(answer))

    async def serve_one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answers one request of a connection, unless its client hangs up first."""
        ended = ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
        with suppress(*ended):
            number, action, instance = FAULT.unpack(
                await reader.readexactly(FAULT.size)
            )
            request = self.request(KINDS[action], number, instance)
            answer = asyncio.ensure_future(self.server.submit(request))
            gone = asyncio.ensure_future(reader.read())
            both = {answer, gone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                found = answer.exception() or answer.result()
                writer.write(pack_answer(answer_of(number, found)))
                await writer.drain()
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        writer.close()


def answer_of(number: int, found: Any) -> Answer:
    """Makes the answer to send for a future's result or exception."""
    if isinstance(found, BaseException):
        status = REFUSED if isinstance(found, eb.ServerFullError) else FAILED
        return Answer(number, status, 0.0, failure_content(found))
    return Answer(number, ANSWERED, 0.0, encode_answer(found))


class HangUps:
    """An event loop in a thread, for connections of clients that hang up.

    Attributes:
        address: The address on which it listens.
    """

    def __init__(self, doors: RequestHandler) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        listening = asyncio.start_server(doors.serve_one, "127.0.0.1", 0)
        future = asyncio.run_coroutine_threadsafe(listening, self._loop)
        self._listener = future.result()
        self.address = self._listener.sockets[0].getsockname()

    def close(self) -> None:
        """Stops the thread."""
        closing = self._end()
        asyncio.run_coroutine_threadsafe(closing, self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._listener.close()
        own = asyncio.current_task()
        others = [each for each in asyncio.all_tasks() if each is not own]
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Trial:
    """The model, its sets of parameters and answers, and its servers.

    Args:
        settings: The settings.
    """

    def __init__(self, settings: FaultSettings) -> None:
        own = self._settings = settings
        arguments = own.workload, own.hidden
        self._served = load_model(
            *arguments, own.instances, data=own.data, seed=own.seed
        )
        other = load_model(*arguments, 1, seed=own.seed + 1)
        self._params = [self._served.params, other.params]
        self._batched = eb.batch(faulty(self._served))

    def facts(self) -> dict[str, Any]:
        """Returns the facts that the test's process needs."""
        return {
            "expected": [self._alone(each) for each in self._params],
            "asks": self._served.asks,
            "data": self._served.data,
        }

    def _alone(self, params: Any) -> list[bytes]:
        """Returns the answers of the unbatched model."""
        with jitted_cells():
            return [
                encode_answer(self._served.model(params, each))
                for each in self._served.instances
            ]

    def warm_up(self) -> None:
        """Compiles all programs: runs all kinds of requests until nothing compiles."""
        with self.server() as server:
            server.warm_up([Faulty(each) for each in self._served.instances])
            self._settle(server)
        gc.collect()
        gc.freeze()

    def server(self) -> eb.Server:
        """Returns a new server."""
        own = self._settings
        return eb.Server(
            self._batched,
            self._params[0],
            max_waiting=8192,
            max_in_flight=own.max_in_flight,
            max_nodes=own.max_nodes,
        )

    def doors(self, server: eb.Server) -> RequestHandler:
        """Returns a request handler for a server."""
        deadline_ms = self._settings.deadline_ms
        return RequestHandler(server, self._served, self._params, deadline_ms)

    def _settle(self, server: eb.Server) -> None:
        instances = self._served.instances
        large = list(self._served.by_size[-8:])
        bad = [oversized(instances[0]), *(poisoned(instances[0], k) for k in range(3))]
        for _ in range(_PASSES):
            before = len(eb.compile_report())
            in_flight = self._settings.max_in_flight
            some = [*instances, *instances, *large * (in_flight // 4)]
            requests = [*bad, *(Faulty(each) for each in some)]
            futures = [server.submit_nowait(each) for each in requests]
            for each in futures:
                each.exception()
            if len(eb.compile_report()) == before:
                return


def traced_bytes(server: eb.Server) -> int:
    """Returns the traced bytes of Python's objects, once no more requests run.

    A request whose client hung up may still run after the last answer, and its objects
    are freed a moment after its end.
    """
    end = time.monotonic() + _SETTLE_S
    while (stats := server.stats()).waiting or stats.in_flight:
        if time.monotonic() > end:
            break
        time.sleep(_PAUSE_S)
    before = float("inf")
    while (now := _traced_bytes()) < before:
        before = now
        time.sleep(_PAUSE_S)
    return int(before)


def _traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def main(settings: FaultSettings, control: Connection) -> None:
    """Handles the commands of a pipe until None is received.

    Args:
        settings: The settings.
        control: The pipe. After the warm-up a dict of facts is sent; then, for each
            run, the address for clients that hang up, answers to commands, and a dict
            of facts about the run.
    """
    sys.setswitchinterval(_SWITCH_S)
    with eb.use_tiers("fine"), socket.create_server(("127.0.0.1", 0)) as door:
        trial = Trial(settings)
        facts = trial.facts()
        trial.warm_up()
        control.send({"address": door.getsockname(), **facts})
        while control.recv() is not None:
            _run(trial, door, control, settings.traced)


def _run(
    trial: Trial, door: socket.socket, control: Connection, is_traced: bool
) -> None:
    """Runs a server for the shared connection and for clients that hang up."""
    compiled, server = len(eb.compile_report()), trial.server()
    doors = trial.doors(server)
    hang_ups = HangUps(doors)
    control.send(hang_ups.address)
    connection, _ = door.accept()
    thread = threading.Thread(target=doors.serve, args=(connection,), daemon=True)
    thread.start()
    if is_traced:
        tracemalloc.start()
    while (asked := control.recv()) != "end":
        if asked == "handled":
            control.send(doors.handled)
        else:
            is_memory = asked == "traced"
            control.send(traced_bytes(server) if is_memory else server.drain(asked))
    tracemalloc.stop()
    hang_ups.close()
    server.close()
    thread.join()  # the other side has hung up
    connection.close()
    control.send(
        {
            "stats": asdict(server.stats()),
            "compilations": len(eb.compile_report()) - compiled,
        }
    )
