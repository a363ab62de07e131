"""`RequestFuture`: a future whose callbacks cannot end the server's thread."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any

_CANCELLING = Lock()  # shared by all futures; held for a few instructions only


class RequestFuture(Future[Any]):
    """A future whose callbacks may raise anything, in the server's thread.

    The standard `Future` logs an `Exception` raised by a callback and continues. Any
    other exception, as raised by ``sys.exit``, propagates, and later callbacks are not
    called. Unlike the standard one, this future can be cancelled at any time until it
    has ended, and `cancel` itself, not the thread that runs the request, notifies
    waiters in `concurrent.futures.wait`.

    Args:
        note_cancelled: Called once the future is cancelled, in any thread.
        check_thread: Called before waiting for the result; raises in a thread that must
            not wait.
    """

    _is_told = False
    _is_cancelled = False  # or about to be
    _is_ending = False

    def __init__(
        self,
        note_cancelled: Callable[[], None] | None = None,
        check_thread: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._note_cancelled = note_cancelled
        self._check_thread = check_thread

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the answer; see `concurrent.futures.Future.result`.

        Raises:
            ServerError: Called in the server's thread, by a model or a callback, before
                there is an answer.
        """
        self._check(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the end; see `concurrent.futures.Future.exception`.

        Raises:
            ServerError: As for `result`.
        """
        self._check(timeout)
        return super().exception(timeout)

    def _check(self, timeout: float | None) -> None:
        asks_only = timeout is not None and timeout <= 0
        if self._check_thread is not None and not (asks_only or self.done()):
            self._check_thread()

    def cancel(self) -> bool:
        """Cancels the request, even if it is running.

        Returns:
            Whether it is cancelled; False if it has ended.
        """
        with _CANCELLING:
            if self._is_ending:
                return False
            self._is_cancelled = True
        if not super().cancel():
            self._is_cancelled = False  # the client has marked it as running
            return False
        with _CANCELLING:
            is_told, self._is_told = self._is_told, True
        if not is_told:
            self.set_running_or_notify_cancel()
            if self._note_cancelled is not None:
                self._note_cancelled()
        return True

    def cancelled(self) -> bool:
        """Whether the request was cancelled; most calls take no lock."""
        return self._is_cancelled and super().cancelled()

    def claim(self) -> bool:
        """Prevents cancellation of a request that is about to end.

        Returns:
            Whether it was not cancelled; the caller must then set a result or an
            exception.
        """
        with _CANCELLING:
            self._is_ending = not self._is_cancelled
            return self._is_ending

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Calls a function once the request has ended; its exceptions are logged.

        It runs in the server's thread, so it must not wait for another request of that
        server, which could not run meanwhile.

        Args:
            fn: The function, called with the future.
        """
        super().add_done_callback(partial(_call, fn))


def _call(function: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    try:
        function(future)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError("a callback of a request ended a program") from error
