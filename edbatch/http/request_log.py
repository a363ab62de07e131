"""Structured logging: one line of JSON per request and per message of the server."""

import json
import logging
import re
import sys
import time
import traceback
import uuid
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edbatch.http.log_thread import FLUSH_S, LogThread
from edbatch.http.refusal import HUNG_UP

LOG = logging.getLogger("edbatch.http")
ID_HEADER = "X-Request-Id"
# Polled by programs every few seconds; logged at level DEBUG only.
_ROUTINE = frozenset({"/healthz", "/readyz", "/metrics", "/v1/stats"})
_LONGEST_PATH = 200
_NO_HTTP = "Invalid HTTP request received."  # edbatch logs a more detailed line
_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON, including the record's ``fields``."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        line: dict[str, Any] = {
            "time": f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}"
            f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = "".join(traceback.format_exception(record.exc_info[1]))
        return json.dumps(line, default=str)

    @staticmethod
    def converter(seconds: float | None) -> time.struct_time:
        """Returns a time in UTC."""
        return time.gmtime(seconds)


def log_as_json(level: str) -> None:
    """Makes all loggers of the process write JSON to stderr.

    Args:
        level: The lowest level that is written, a name in lower case. For loggers other
            than ``edbatch`` and ``uvicorn``, it is WARNING at least.
    """
    handler: logging.Handler = logging.NullHandler()
    if sys.stderr is not None:  # None if it is closed
        handler = LogThread(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    others = max(logging.WARNING, logging.getLevelNamesMapping()[level.upper()])
    root.setLevel(others)
    for name in ("edbatch", "uvicorn"):
        own = logging.getLogger(name)
        own.handlers.clear()
        own.propagate = True
        own.setLevel(level.upper())
    # Uvicorn's lower levels repeat what edbatch logs about the server.
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.setLevel(others)
    uvicorn.addFilter(_is_not_logged_by_edbatch)
    logging.captureWarnings(True)


def _is_not_logged_by_edbatch(record: logging.LogRecord) -> bool:
    return record.getMessage() != _NO_HTTP


def flush_log() -> bool:
    """Waits until the log is written, at most `FLUSH_S` s; returns whether it is."""
    handlers = logging.getLogger().handlers
    return all(each.wait(FLUSH_S) for each in handlers if isinstance(each, LogThread))


def say(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Logs a message of the server itself."""
    LOG.log(level, message, extra={"fields": fields})


class RequestLog:
    """ASGI middleware that gives each request an id, and logs a line per answer.

    Bodies and query strings are not logged.

    Args:
        app: The wrapped application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        number = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = number
        status, size = HUNG_UP, 0

        async def counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                head = (ID_HEADER.lower().encode(), number.encode())
                message = {**message, "headers": [*message["headers"], head]}
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            status = 500 if status == HUNG_UP else status
            raise
        finally:
            path = str(scope["path"])
            own = path.removeprefix(scope.get("root_path", ""))  # where it is mounted
            say(
                "request",
                logging.DEBUG if own in _ROUTINE else logging.INFO,
                id=number,
                method=scope["method"][:20],
                path=path[:_LONGEST_PATH],
                status=status,
                ms=round(1e3 * (time.perf_counter() - began), 3),
                bytes=size,
                client=(scope.get("client") or ("", 0))[0],
                **scope["state"].get("log_fields", {}),
            )


def _request_id(scope: Scope) -> str:
    """Returns the client's own request id if it is a short word, else a new one."""
    for name, value in scope["headers"]:
        if name == ID_HEADER.lower().encode():
            found = str(value, "latin-1")
            if _ID.fullmatch(found):
                return found
    return uuid.uuid4().hex
