"""The wire between the generator of a load test and the server under test.

One TCP connection on the loopback address. A request is two numbers, its own and that
of an instance of a set that the server has made from a seed; an answer is the
request's number, what became of it, when its first value was there, and the bytes of
what the model returned. So the wire costs little, and the same for all systems.

Times are those of `time.monotonic`, which all processes of a machine share.
"""

import socket
import struct
from dataclasses import dataclass

REQUEST = struct.Struct("<II")  # number of the request, and of the instance
ANSWER = struct.Struct("<IBdI")  # number, status, time of the first value, bytes
ANSWERED, FAILED = 0, 1
_PART = 1 << 16


@dataclass(frozen=True)
class Answer:
    """An answer as it came over the wire.

    Attributes:
        number: Of the request.
        status: `ANSWERED` or `FAILED`.
        first_value: When the request's first value was there.
        content: What the model returned, or why it failed.
    """

    number: int
    status: int
    first_value: float
    content: bytes


class Reader:
    """Cuts what comes over a connection into messages.

    Args:
        connection: The connection.
        request: What a request is made of.
    """

    def __init__(
        self, connection: socket.socket, request: struct.Struct = REQUEST
    ) -> None:
        self._connection, self._rest = connection, b""
        self._request = request

    def requests(self) -> list[tuple[int, ...]] | None:
        """Waits for requests; None if the other side has hung up."""
        try:
            data = self._connection.recv(_PART)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        data = self._rest + data
        whole = len(data) - len(data) % self._request.size
        self._rest = data[whole:]
        return list(self._request.iter_unpack(data[:whole]))

    def answers(self) -> list[Answer]:
        """Waits for answers.

        Raises:
            ConnectionError: The server has hung up.
        """
        data = self._connection.recv(_PART)
        if not data:
            raise ConnectionError("the server under test has hung up; see its messages")
        data, at, found = self._rest + data, 0, []
        while len(data) - at >= ANSWER.size:
            number, status, first, length = ANSWER.unpack_from(data, at)
            end = at + ANSWER.size + length
            if len(data) < end:
                break
            content = data[at + ANSWER.size : end]
            found.append(Answer(number, status, first, content))
            at = end
        self._rest = data[at:]
        return found


def pack_answer(answer: Answer) -> bytes:
    """Returns an answer as it goes over the wire."""
    head = ANSWER.pack(
        answer.number, answer.status, answer.first_value, len(answer.content)
    )
    return head + answer.content
