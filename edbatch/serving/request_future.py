"""The future of a request, whose callbacks cannot end the server's thread."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any


class RequestFuture(Future[Any]):
    """A future whose callbacks may raise anything, in the server's thread.

    One of the standard library logs an `Exception` of a callback, and goes on; but what
    is none, as by ``sys.exit``, goes through, and the callbacks that follow are not
    called.
    """

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Calls a function once the request has ended; what it raises is logged.

        Args:
            fn: The function of the future.
        """
        super().add_done_callback(partial(_call, fn))


def _call(function: Callable[[Future[Any]], object], future: Future[Any]) -> None:
    try:
        function(future)
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError("a callback of a request ended a program") from error
