"""The systems of the load test: ways to serve the same model to the same requests.

*continuous* is `edbatch.Server`: a request joins at the next wave. A *window* collects
requests until the first one has waited for some milliseconds, or until there are 64,
and runs them as one minibatch to its end before it collects again. *one by one* runs
one request at a time, with each cell compiled separately.

A request is a `Ticket`; a system calls `Ticket.done` once, from any thread.
"""

import contextvars
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
from load_models import ServedModel, encode_answer

import edbatch as eb
from edbatch.graph.context import jitted_cells

_ticket: contextvars.ContextVar["Ticket | None"] = contextvars.ContextVar(
    "_ticket", default=None
)


@dataclass(eq=False)
class Ticket:
    """A request in flight.

    Attributes:
        instance: The request's instance.
        answer: Callback for the answer's bytes, or for an exception.
        first_value: Time at which the model read its first value; 0.0 before.
        content: The answer of a model that reads values, once the model has ended.
        came: Arrival time of the request.
    """

    instance: Any
    answer: Callable[["Ticket", bytes | BaseException], None]
    first_value: float = 0.0
    content: bytes = b""
    came: float = field(default_factory=time.monotonic)

    def done(self, found: bytes | BaseException) -> None:
        """Answers the request."""
        if not self.first_value:
            self.first_value = time.monotonic()
        self.answer(self, found)


class System(Protocol):
    """A way to serve requests."""

    def submit(self, ticket: Ticket) -> None:
        """Submits a request."""

    def submit_many(self, tickets: list[Ticket]) -> None:
        """Submits requests that arrived together."""

    def close(self) -> None:
        """Stops the system; unanswered requests get no answer."""


def note_first_values() -> None:
    """Patches `eb.value` to record the time of each request's first value."""
    value = eb.value

    def noted(tree: Any) -> Any:
        found = value(tree)
        ticket = _ticket.get()
        if ticket is not None and not ticket.first_value:
            ticket.first_value = time.monotonic()
        return found

    eb.value = noted


def of_tickets(served: ServedModel) -> Callable[[Any, Ticket], Any]:
    """Returns the model as a function of tickets.

    The answer of a model that reads values consists of Python numbers. It is stored in
    the ticket, so that no system spends time stacking the numbers of a minibatch.
    """

    def run(params: Any, ticket: Ticket) -> Any:
        _ticket.set(ticket)
        found = served.model(params, ticket.instance)
        if not served.asks:
            return found
        ticket.content = encode_answer(found)
        return None

    return run


class Continuous:
    """The system that uses `edbatch.Server`.

    Args:
        batched: The model of tickets.
        params: The model's parameters.
        **options: Options of the server.
    """

    def __init__(self, batched: eb.Batched, params: Any, **options: Any) -> None:
        self.server = eb.Server(batched, params, **options)

    def submit(self, ticket: Ticket) -> None:
        self.submit_many([ticket])

    def submit_many(self, tickets: list[Ticket]) -> None:
        try:
            futures = self.server.submit_many(tickets)
        except eb.EdbatchError as error:
            for each in tickets:
                each.done(error)
        else:
            for ticket, future in zip(tickets, futures, strict=True):
                future.add_done_callback(partial(self._answer, ticket))

    def _answer(self, ticket: Ticket, future: "Future[Any]") -> None:
        error = future.exception()
        ticket.done(error or ticket.content or encode_answer(future.result()))

    def close(self) -> None:
        self.server.close()


class _OneThread:
    """A system whose only thread takes requests from a queue."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        self._queue.put(ticket)

    def submit_many(self, tickets: list[Ticket]) -> None:
        for each in tickets:
            self.submit(each)

    def close(self) -> None:
        self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while not self._closed:
            tickets = self._take()
            if self._closed:
                return
            try:
                self._run(tickets)
            except Exception as error:
                for each in tickets:
                    each.done(error)

    def _take(self) -> list[Ticket]:
        first = self._queue.get()
        return [] if first is None else [first]

    def _run(self, tickets: list[Ticket]) -> None:
        raise NotImplementedError


class Window(_OneThread):
    """The system that runs minibatches of the requests in a time window.

    Args:
        batched: The model of tickets.
        served: The model.
        window_ms: Length of the window, from the arrival of the first request.
        most: Maximum number of requests in a minibatch.
    """

    def __init__(
        self,
        batched: eb.Batched,
        served: ServedModel,
        window_ms: float,
        most: int,
    ) -> None:
        self._batched, self._served = batched, served
        self._window_s, self._most = 1e-3 * window_ms, most
        super().__init__()

    def _take(self) -> list[Ticket]:
        found = super()._take()
        end = found[0].came + self._window_s if found else 0.0
        while found and len(found) < self._most:
            left = end - time.monotonic()
            try:
                each = self._queue.get(left > 0, max(left, 0))
            except queue.Empty:
                break
            if each is None:
                break
            found.append(each)
        return found

    def _run(self, tickets: list[Ticket]) -> None:
        found = self._batched(self._served.params, tickets)
        if self._served.asks:
            answers = [each.content for each in tickets]
        else:
            answers = [encode_answer(each) for each in np.asarray(found)]
        for ticket, answer in zip(tickets, answers, strict=True):
            ticket.done(answer)


class OneByOne(_OneThread):
    """The system that runs one request at a time, with jitted cells.

    Args:
        served: The model.
    """

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        super().__init__()

    def _serve(self) -> None:
        with jitted_cells():
            super()._serve()

    def _run(self, tickets: list[Ticket]) -> None:
        [ticket] = tickets
        ticket.done(answer_alone(self._served, ticket))


def answer_alone(served: ServedModel, ticket: Ticket) -> bytes:
    """Runs the model for one request; the caller chooses whether cells are jitted."""
    _ticket.set(ticket)
    found = served.model(served.params, ticket.instance)
    return encode_answer(jax.block_until_ready(found))
