"""The wire between the clients of a test of faults and the server under test.

As in `load_wire.py`; a message says besides what is to become of the request, or that
one is cancelled, or that the parameters are swapped. Messages of one connection are
obeyed in their order, so a request that is sent after a swap gets the new parameters.
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

FAULT = struct.Struct("<IBI")  # number of the request, what to do, and the instance
KINDS = (GOOD, POISONED, CANCELLED, OVERSIZED, LATE, HUNG_UP)  # what a request becomes
CANCELLATION = KINDS.index(CANCELLED)  # also the status of an answer
REFUSED = 3  # status of an answer: too many requests wait
CANCEL, SWAP = 100, 101
_LONGEST = 300  # characters of an error's text


def failure_content(error: BaseException) -> bytes:
    """Returns an exception's type and text, as they go over the wire."""
    return f"{type(error).__name__}: {error}"[:_LONGEST].encode()


def failure_type(content: bytes) -> str:
    """Returns the name of the type of an exception that came over the wire."""
    return content.decode(errors="replace").partition(":")[0]
