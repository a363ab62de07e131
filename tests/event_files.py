"""Reads TensorBoard event files without TensorBoard."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A record: its length, a checksum of the length, the data, a checksum of the data.
_HEAD, _TAIL = "<Q4x", 4


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    """Name, step and value of all scalars in a folder, in the order written."""
    return [
        (value.tag, event.step, value.simple_value)
        for event in events(folder)
        for value in event.summary.value
    ]


def events(folder: Path) -> Iterator[Any]:
    """All events, file by file."""
    from tensorboardX.proto.event_pb2 import Event

    for file in sorted(folder.glob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack_from(_HEAD, data)
            start = struct.calcsize(_HEAD)
            yield Event.FromString(data[start : start + length])
            data = data[start + length + _TAIL :]
