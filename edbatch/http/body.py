"""Reads the body of a request, with limits on size and time."""

import asyncio
from email.message import Message

from starlette.requests import Request

from edbatch.http.refusal import Refusal

_DISCARDED = 16  # a body is read and discarded up to this many times the limit
_LONGEST_TYPE = 200
_READ_S = 30.0
_DISCARD_S = 2.0  # time limit for a body to be discarded


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Reads the body of a request.

    Args:
        request: The request.
        max_bytes: Maximum length, also of a chunked body.

    Returns:
        The body.

    Raises:
        Refusal: The headers do not declare uncompressed JSON in UTF-8, or give two
            lengths; or the body is too long or too slow.
        ClientDisconnect: The client has disconnected.
    """
    declared = request.headers.get("content-length", "")
    is_larger = declared.isdecimal() and int(declared) > max_bytes
    try:
        async with asyncio.timeout(_DISCARD_S if is_larger else _READ_S):
            body = await _read(request, max_bytes)
        _check_length(request)  # after reading, so that the client reads the answer
        _check_headers(request)
        return body
    except TimeoutError:
        if is_larger:
            raise _too_large(max_bytes) from None
        raise Refusal(
            408, "body_too_slow", f"the body did not come within {_READ_S:g} seconds"
        ) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    """Reads a body, also past the limit, so that the client gets to read the answer."""
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size <= max_bytes:
            pieces.append(piece)
        else:
            pieces.clear()
            if size > _DISCARDED * max_bytes:
                break
    if size > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(pieces)


def _too_large(max_bytes: int) -> Refusal:
    return Refusal(
        413,
        "body_too_large",
        f"the body has more than {max_bytes:,} bytes, as many as it may have; send a"
        " smaller input",
    )


def _check_length(request: Request) -> None:
    """Refuses a body with two lengths, since a proxy may have used the other one.

    Source: RFC 9112, section 6.3.
    """
    both = ("content-length", "transfer-encoding")
    if all(each in request.headers for each in both):
        raise Refusal(
            400,
            "two_lengths",
            "a body has a Content-Length or a Transfer-Encoding, but this has both;"
            " send one of them",
            {"Connection": "close"},
        )


def _check_headers(request: Request) -> None:
    kind, charset = _content_type(request.headers.get("content-type", ""))
    if kind != "application/json":
        raise Refusal(
            415,
            "not_json",
            "the body must be JSON; send the header Content-Type: application/json",
        )
    if charset not in ("utf-8", "utf8"):
        raise Refusal(415, "not_utf8", "the body must be JSON in UTF-8")
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise Refusal(
            415, "compressed", "the body must not be compressed; send it as it is"
        )


def _content_type(text: str) -> tuple[str, str]:
    """Returns the media type and charset of a header, in lower case."""
    # A client may send 64 KiB, which the parser takes seconds to read.
    if len(text) > _LONGEST_TYPE:
        return "", ""
    header = Message()
    try:
        header["content-type"] = text
        charset = header.get_content_charset("utf-8").replace("_", "-")
        return header.get_content_type(), charset
    except Exception:  # malformed parameters may raise almost anything
        return "", ""
