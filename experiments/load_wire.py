"""The protocol between the generator of the load test and the server under test.

It uses one TCP connection on the loopback address. A request is two numbers: its own
number, and the index of an instance in a set that the server has made from a seed. An
answer is the request's number, a status, the time of its first value, and the bytes of
the model's result. So communication costs little, and costs all systems the same.

Times are from `time.monotonic`, which all processes of a machine share.
"""

import socket
import struct
from dataclasses import dataclass

REQUEST = struct.Struct("<II")  # request number, instance index
ANSWER = struct.Struct("<IBdI")  # number, status, time of first value, number of bytes
ANSWERED, FAILED = 0, 1
_PART = 1 << 16


@dataclass(frozen=True)
class Answer:
    """An answer, as it is sent.

    Attributes:
        number: Number of the request.
        status: `ANSWERED` or `FAILED`, or a status of the fault test (`fault_wire.py`).
        first_value: Time of the request's first value.
        content: The model's result, or the reason of the failure.
    """

    number: int
    status: int
    first_value: float
    content: bytes


class Reader:
    """Splits the bytes of a connection into messages.

    Args:
        connection: The connection.
        request: The format of a request.
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
    """Encodes an answer for sending."""
    head = ANSWER.pack(
        answer.number, answer.status, answer.first_value, len(answer.content)
    )
    return head + answer.content
