"""The protocol between the clients of the fault test and the server under test.

It extends `load_wire.py`: a message also gives the kind of the request, or says that a
request is cancelled or the parameters are swapped. Messages of one connection are
handled in order, so a request sent after a swap gets the new parameters.
"""

import struct

from faulty_requests import (
    CANCELLED,
    GOOD,
    HUNG_UP,
    LATE,
    OVERSIZED,
    POISONED,
)

FAULT = struct.Struct("<IBI")  # request number, kind or action, instance index
KINDS = (GOOD, POISONED, CANCELLED, OVERSIZED, LATE, HUNG_UP)  # of requests
CANCELLATION = KINDS.index(CANCELLED)  # also the status of an answer
REFUSED = 3  # status of an answer: too many requests wait
CANCEL, SWAP = 100, 101
_LONGEST = 300  # maximum number of characters of an error's text


def failure_content(error: BaseException) -> bytes:
    """Encodes an exception's type and text."""
    return f"{type(error).__name__}: {error}"[:_LONGEST].encode()


def failure_type(content: bytes) -> str:
    """Decodes the name of the type of an exception."""
    return content.decode(errors="replace").partition(":")[0]
