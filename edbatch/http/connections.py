"""Limits on connections: how many there are, and how long one may send nothing whole.

Uvicorn bounds neither: a client that only connects, or that never ends the head of its
request, would hold a file for good; and where the process has no file left, it answers
nobody.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_HEAD_S = 30.0
_LOOK_S = 2.0
_OWN_FILES = 100  # for what the process opens itself


def most_connections() -> int:
    """Returns how many connections fit, after asking for as many files as allowed."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return 65_536
    return max(soft // 2, soft - _OWN_FILES)


def connection_class(most: int) -> type[Any]:
    """Makes the class of Uvicorn's connections that closes those that are too many.

    Each one knows in ``waits_since`` when it began to wait for a request, by
    `time.monotonic`.

    Args:
        most: How many there may be at once.
    """

    class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: Any) -> None:
            self.waits_since = time.monotonic()
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()

        def on_response_complete(self) -> None:
            self.waits_since = time.monotonic()
            super().on_response_complete()

    return Connection


async def close_idle(connections: Collection[Any], limit_s: float = _HEAD_S) -> None:
    """Closes connections on which no whole head of a request has come for a while.

    Args:
        connections: Those of Uvicorn, a collection that changes, of the class that
            `connection_class` makes.
        limit_s: How long one may wait, in seconds.
    """
    while True:
        now = time.monotonic()
        for each in [*connections]:
            waits = each.cycle is None or each.cycle.response_complete
            if waits and now - each.waits_since > limit_s:
                each.transport.close()
        await asyncio.sleep(min(_LOOK_S, limit_s / 4))
