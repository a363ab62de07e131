"""A logging handler that writes in its own thread, since the log's reader may stop.

Writing to a full pipe blocks. If the event loop did the writing, the server would
answer no one, and no signal would end it.
"""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from typing import TextIO

_MOST_WAITING = 10_000  # lines
FLUSH_S = 1.0
# Pause between two writes, so that under load each write has many lines.
_PAUSE_S = 0.01


class LogThread(logging.Handler):
    """Writes log lines to a stream, in order.

    If too many lines are waiting, new ones are dropped; a line reports how many.

    Args:
        stream: The stream to write to.
        most: Maximum number of waiting lines.
    """

    def __init__(self, stream: TextIO, most: int = _MOST_WAITING) -> None:
        super().__init__()
        self._stream, self._most = stream, most
        self._lines: deque[str] = deque()
        self._dropped = 0
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Starts the thread; called again in a forked process, which lacks it."""
        self._lines.clear()
        self._is_writing = False
        self._changed = threading.Condition()  # the parent's may be locked
        threading.Thread(target=self._run, name="edbatch log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record to be written."""
        try:
            line = self.format(record)
        except Exception as error:  # a value cannot be formatted
            line = self._told(
                f"a line of {record.name} cannot be written: {type(error).__name__}"
            )
        with self._changed:
            if len(self._lines) < self._most:
                self._lines.append(line)
                self._changed.notify_all()
            else:
                self._dropped += 1

    def flush(self) -> None:
        """Waits up to `FLUSH_S` seconds until everything is written."""
        self.wait(FLUSH_S)

    def wait(self, timeout: float) -> bool:
        """Waits until everything is written.

        Args:
            timeout: Maximum seconds to wait.

        Returns:
            Whether everything is written.
        """
        with self._changed:
            return self._changed.wait_for(self._is_done, timeout)

    def _is_done(self) -> bool:
        return not self._lines and not self._is_writing

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines)
                lines, self._lines = self._lines, deque()
                dropped, self._dropped = self._dropped, 0
                self._is_writing = True
            if dropped:
                lines.append(
                    self._told(
                        f"{dropped} lines were dropped, because nothing read the log"
                        " fast enough"
                    )
                )
            with contextlib.suppress(OSError, ValueError):  # no reader, or closed
                self._stream.write("".join(f"{each}\n" for each in lines))
                self._stream.flush()
            time.sleep(_PAUSE_S)

    def _told(self, text: str) -> str:
        values = {"name": __name__, "levelno": logging.WARNING, "msg": text}
        return self.format(logging.makeLogRecord({**values, "levelname": "WARNING"}))
