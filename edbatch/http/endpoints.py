"""HTTP endpoints: the model, health, metrics, the schema, the status page's data."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from edbatch.http.body import read_body
from edbatch.http.contract import Call, Contract
from edbatch.http.daemon_thread import in_daemon_thread
from edbatch.http.history import SECONDS, History
from edbatch.http.http_metrics import HttpMetrics
from edbatch.http.lifecycle import Lifecycle, Phase
from edbatch.http.limits import Limits
from edbatch.http.model_error import InputError
from edbatch.http.refusal import HUNG_UP, RETRY_S, Refusal, refusal_of
from edbatch.http.request_log import LOG
from edbatch.serving.metrics import ServerCollector
from edbatch.serving.server import Server

# Bodies up to this size are parsed, and their answers formatted, in the event loop,
# which takes less than a millisecond.
_SMALL_BYTES = 16 * 1024
_READERS = 8  # maximum number of threads that parse larger bodies


class Endpoints:
    """Answers HTTP requests with a server. All methods run in the event loop.

    Args:
        server: The server.
        contract: Parses requests and formats answers.
        name: The model's name.
        limits: Limits on requests.

    Attributes:
        server: The server.
        contract: Parses requests and formats answers.
        name: The model's name.
        lifecycle: The phase, which decides whether requests are accepted.
        history: Statistics of the last minutes.
        on_failure: Called with the exception if the warm-up fails.
        on_warm: Called after the warm-up, before the first request is accepted.
    """

    def __init__(
        self, server: Server, contract: Contract, name: str, limits: Limits
    ) -> None:
        self.server, self.contract, self.name = server, contract, name
        self.lifecycle, self.history = Lifecycle(), History()
        self.on_failure: Callable[[Exception], None] | None = None
        self.on_warm: Callable[[], None] | None = None
        self._limits, self._malformed = limits, 0
        self._readers = asyncio.Semaphore(_READERS)
        self._metrics = HttpMetrics()
        self._registry = CollectorRegistry()
        for each in (ServerCollector(server), self._metrics):
            self._registry.register(each)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    async def run(self, request: Request) -> Response:
        """``POST /v1/run``: answers one input."""
        with self._metrics.timed() as timed:
            try:
                with self.lifecycle.reading():
                    call = await self._read(request)
                with self.lifecycle.taken():
                    response = await self._run(request, call)
                self.history.add(timed.passed_ms())
            except ClientDisconnect:
                response = Response(status_code=HUNG_UP)
            except Exception as error:
                response = self._refuse(request, error)
            timed.status = response.status_code
        return response

    async def _read(self, request: Request) -> Call:
        try:
            body = await read_body(request, self._limits.max_body_bytes)
            read = partial(self.contract.read, body)
            if len(body) <= _SMALL_BYTES:
                return read()
            async with self._readers:
                return await in_daemon_thread(read)
        except (Refusal, InputError):
            self._malformed += 1
            raise

    async def _run(self, request: Request, call: Call) -> Response:
        deadline_ms = call.deadline_ms
        if deadline_ms is None:
            deadline_ms = self._limits.deadline_ms
        future = self.server.submit_in_loop(
            call.instance, deadline_ms=deadline_ms, priority=call.priority
        )
        answer = await _unless_it_hangs_up(request, future)
        text = self.contract.write(answer)
        return Response(text, media_type="application/json")

    def _refuse(self, request: Request, error: Exception) -> Response:
        refusal = refusal_of(error)
        fields: dict[str, Any] = {"code": refusal.code}
        if refusal.status == 500:
            fields["id"] = request.state.request_id
            LOG.error("internal error", exc_info=error, extra={"fields": fields})
        own = {"code": refusal.code}
        if isinstance(error, InputError):
            own["error"] = error.described
            fields["id"] = request.state.request_id
            LOG.debug("the model raised", exc_info=error, extra={"fields": fields})
        request.state.log_fields = own
        return refusal.response()

    def tick(self) -> None:
        """Ends the current second of the history."""
        self.history.tick(self.server.stats(), self._malformed)

    async def health(self, request: Request) -> Response:
        """``GET /healthz``: whether the server's thread is alive."""
        if self.server.is_running or self.lifecycle.phase is Phase.DRAINING:
            return JSONResponse({"status": "ok", "phase": self.lifecycle.phase.value})
        return JSONResponse({"status": "failed", "phase": "ended"}, 503)

    async def ready(self, request: Request) -> Response:
        """``GET /readyz``: 200 if requests are accepted, otherwise 503."""
        phase = self.lifecycle.phase
        is_ready = phase is Phase.READY and self.server.is_running
        if is_ready:
            return JSONResponse({"phase": phase.value})
        return JSONResponse({"phase": phase.value}, 503, {"Retry-After": RETRY_S})

    async def metrics(self, request: Request) -> Response:
        """``GET /metrics``: metrics for Prometheus."""
        accepted = request.headers.get("accept", "")
        try:
            encode, kind = choose_encoder(accepted)
        except Exception:  # for example a version that is not a number
            encode, kind = choose_encoder("")
        return Response(encode(self._registry), headers={"Content-Type": kind})

    async def schema(self, request: Request) -> Response:
        """``GET /schema``: JSON Schemas of requests and answers."""
        return JSONResponse({"model": self.name, **self.contract.schema})

    async def stats(self, request: Request) -> Response:
        """``GET /v1/stats``: statistics of the last minutes, for the status page."""
        try:
            since = float(request.query_params.get("since", 0))
        except ValueError:
            error = Refusal(400, "no_number", "since is a time in seconds")
            return self._refuse(request, error)
        stats = self.server.stats()
        counts = ("submitted", "answered", "failed", "cancelled", "expired", "refused")
        now = ("waiting", "in_flight", "held", "waves", "nodes", "batches", "rows")
        return JSONResponse(
            {
                "model": self.name,
                "phase": self.lifecycle.phase.value,
                "began": self.lifecycle.began,
                "minute": self.history.minute(),
                "totals": {
                    **{each: getattr(stats, each) for each in counts},
                    "malformed": self._malformed,
                },
                "now": {each: getattr(stats, each) for each in now},
                "slowest_turns": [asdict(each) for each in stats.slowest_turns],
                "kept_seconds": SECONDS,
                "seconds": self.history.seconds(since),
            },
            headers={"Cache-Control": "no-store"},
        )


async def _unless_it_hangs_up(request: Request, future: "asyncio.Future[Any]") -> Any:
    """Waits for an answer; cancels the request if the client disconnects.

    Raises:
        ClientDisconnect: The client has disconnected.
    """
    hung_up = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((future, hung_up), return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        raise ClientDisconnect
    finally:
        future.cancel()
        hung_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hung_up


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
