"""Error answers: an HTTP status, a code for programs, a sentence for people."""

from typing import Any

from starlette.responses import JSONResponse

from edbatch.errors import (
    DeadlineError,
    RecordingError,
    ServerClosedError,
    ServerFullError,
)
from edbatch.http.model_error import InputError, first_line

HUNG_UP = 499  # for the log; the client does not read the answer
RETRY_S = "1"


class Refusal(Exception):
    """A request is answered with an error.

    Args:
        status: The HTTP status.
        code: Error code for programs, words joined by ``_``.
        message: A sentence for people.
        headers: Additional headers.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Returns the JSON body of the answer."""
        # A lone surrogate, as in a file name that is not UTF-8, has no UTF-8 encoding.
        message = self.message.encode("utf-8", "backslashreplace").decode()
        return {"error": {"code": self.code, "message": message}}

    def response(self) -> JSONResponse:
        """Returns the answer."""
        return JSONResponse(self.body(), self.status, self.headers)


def retry_later(status: int, code: str, message: str) -> Refusal:
    """Returns a refusal with ``Retry-After``, of a request to be sent again soon."""
    return Refusal(status, code, message, {"Retry-After": RETRY_S})


def refusal_of(error: Exception) -> Refusal:
    """Returns the error answer for an exception.

    Args:
        error: The exception that ended a request.

    Returns:
        The refusal; for errors of the server itself, a status 500 without details.
    """
    match error:
        case Refusal():
            return error
        case InputError() | RecordingError():
            return Refusal(422, "input_failed", first_line(error))
        case DeadlineError():
            return Refusal(504, "deadline_passed", first_line(error))
        case ServerFullError():
            return retry_later(
                429,
                "too_many_requests",
                "the server's queue is full; send the request again later",
            )
        case ServerClosedError():
            return shutting_down()
    return Refusal(
        500,
        "internal_error",
        "the server failed to answer this request, possibly through no fault of the"
        " request; see the server's log, under the request's id",
    )


def shutting_down() -> Refusal:
    """Returns the refusal sent by a server that is shutting down."""
    return Refusal(
        503,
        "shutting_down",
        "the server is shutting down and takes no more requests; send it to"
        " another one",
        {"Retry-After": RETRY_S, "Connection": "close"},
    )
