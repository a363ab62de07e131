"""The ASGI application of a server: routes, warm-up, and the history's clock."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from edbatch.errors import EdbatchError
from edbatch.http.contract import Contract
from edbatch.http.daemon_thread import begin_in_daemon_thread
from edbatch.http.endpoints import Endpoints
from edbatch.http.lifecycle import Phase
from edbatch.http.limits import Limits
from edbatch.http.refusal import Refusal
from edbatch.http.request_log import LOG, RequestLog, say
from edbatch.http.service import Service
from edbatch.http.status_page import page_routes
from edbatch.serving.server import Server

_TICK_S = 1.0
_LOOK_S = 0.02  # polling interval during the warm-up


def create_app(
    server: Server,
    service: Service,
    limits: Limits | None = None,
) -> Starlette:
    """Creates the ASGI application of a server, for any ASGI server.

    ``edbatch serve`` runs it with uvicorn. The application warms the server up when it
    starts, and is ready afterwards. If it is mounted in another application, it warms
    up at its first request; send one to ``/readyz`` after startup. The caller, who
    created the server, must close it.

    Args:
        server: The server of ``guarded_batch(service.model, None)``
            (`edbatch.http.model_error`), which distinguishes the model's exceptions for
            an input from errors of the server.
        service: Defines requests and answers.
        limits: Limits on requests.

    Returns:
        The application; its ``state.endpoints`` answers requests.

    Raises:
        ServiceError: The service's types have no schema, or an example is refused.
    """
    limits = limits or Limits()
    contract = Contract(service, limits.max_depth)
    endpoints = Endpoints(server, contract, service.name, limits)
    background = _Background(endpoints, contract.sample)

    found = Starlette(
        routes=[
            Route("/v1/run", endpoints.run, methods=["POST"]),
            Route("/v1/stats", endpoints.stats),
            Route("/healthz", endpoints.health),
            Route("/readyz", endpoints.ready),
            Route("/metrics", endpoints.metrics),
            Route("/schema", endpoints.schema),
            *page_routes(),
        ],
        middleware=[
            Middleware(_StartAtFirstRequest, background=background),
            Middleware(RequestLog),
        ],
        exception_handlers={HTTPException: _refuse},
        lifespan=background.lifespan,
    )
    # A redirect would go to the host named by the client, over plain http.
    found.router.redirect_slashes = False
    found.state.endpoints = endpoints
    return found


class _Background:
    """Background tasks: the warm-up, and the clock of the history.

    Args:
        endpoints: The endpoints.
        sample: Instances to warm up with.
    """

    def __init__(self, endpoints: Endpoints, sample: Sequence[Any]) -> None:
        self._endpoints, self._sample = endpoints, sample
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._warming: Future[Any] | None = None

    def begin(self) -> None:
        """Starts the tasks in the running event loop, once per loop.

        Tasks that a previous event loop did not finish are started again in a new one.
        """
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        self._loop = loop
        self._tasks = [loop.create_task(_tick(self._endpoints))]
        if self._endpoints.lifecycle.phase is Phase.WARMING_UP:
            if self._warming is None:  # one thread, even if several loops wait for it
                server, sample = self._endpoints.server, self._sample
                self._warming = begin_in_daemon_thread(lambda: server.warm_up(sample))
            work = _warm_up(self._endpoints, self._sample, self._warming)
            task = loop.create_task(work)
            self._tasks.append(task)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Runs the tasks while the application runs."""
        self._loop = None  # the application may restart in the same loop
        self.begin()
        yield
        for each in self._tasks:
            each.cancel()


class _StartAtFirstRequest:
    """Starts background tasks at the first request, for applications without startup.

    A mounted application gets no startup event.

    Args:
        app: The wrapped application.
        background: The background tasks.
    """

    def __init__(self, app: ASGIApp, background: _Background) -> None:
        self._app, self._background = app, background

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] == "http":
            self._background.begin()
        await self._app(scope, receive, send)


async def _warm_up(
    endpoints: Endpoints, sample: Sequence[Any], warming: "Future[Any]"
) -> None:
    """Waits for the warm-up, then marks the server ready, unless the warm-up failed."""
    if sample:
        say("warming up", instances=len(sample))
        try:
            while not warming.done():  # polled, since several loops may wait for it
                await asyncio.sleep(_LOOK_S)
            warming.result()
        except Exception as error:
            if isinstance(error, EdbatchError):  # its message suffices
                say("the warm-up failed", logging.ERROR, error=str(error))
            else:
                LOG.error("the warm-up failed", exc_info=error)
            if endpoints.on_failure is not None:
                endpoints.on_failure(error)
            return
    if endpoints.on_warm is not None:
        endpoints.on_warm()
    endpoints.lifecycle.ready()
    say("ready")


async def _tick(endpoints: Endpoints) -> None:
    while True:
        endpoints.tick()
        await asyncio.sleep(_TICK_S)


async def _refuse(request: Request, error: Exception) -> Response:
    """Answers requests for unknown paths and wrong methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict((isinstance(error, HTTPException) and error.headers) or {})
    if status == 405:
        message = f"this path takes {headers.get('Allow', 'another method')} only"
        return Refusal(405, "wrong_method", message, headers).response()
    message = "there is nothing at this path; inputs go to POST /v1/run"
    return Refusal(status, "not_found", message, headers).response()
