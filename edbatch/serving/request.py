"""A request to a server, from its submission to its answer."""

import copy
import time
from concurrent.futures import InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from edbatch.errors import DeadlineError, ServerError, shown
from edbatch.graph.handle import Handle
from edbatch.serving.request_future import RequestFuture
from edbatch.serving.stats import Counts
from edbatch.waves.asked_values import returned_handles
from edbatch.waves.instance_run import InstanceRun


@dataclass(eq=False)
class Request:
    """One instance to run.

    Attributes:
        instance: The instance.
        number: Number of requests submitted before; the random keys of its cells are
            derived from it.
        priority: Requests of higher priority run first.
        deadline: Latest time of the answer, by `time.perf_counter`; or None.
        future: The future that receives the answer.
        submitted: Time of submission, by `time.perf_counter`.
        run: The run of the instance, once started.
        first_value: Time at which it got its first values, or None.
        left_over: Whether the last wave had no room for it.
    """

    instance: Any
    number: int
    priority: float
    deadline: float | None
    future: RequestFuture = field(default_factory=RequestFuture)
    submitted: float = field(default_factory=time.perf_counter)
    run: InstanceRun | None = None
    first_value: float | None = None
    left_over: bool = False

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and now > self.deadline

    def answer(self, values: list[np.ndarray]) -> Any:
        """Returns the model's result, with values in place of handles.

        Values are copied, including those that the model itself read: they are views of
        the whole wave's arrays, which a client would keep alive with its answer.
        """
        assert self.run is not None, "it ran"
        found = map(np.array, values)

        def own(leaf: Any) -> Any:
            if type(leaf) is Handle:
                return next(found)
            return leaf.copy() if _is_of_a_wave(leaf) else leaf

        result = self.run.result
        if not values and not any(map(_is_of_a_wave, jax.tree.leaves(result))):
            return result
        return jax.tree.map(own, result)

    def ask_for_result(self) -> bool:
        """Requests the values of an ended instance's result; False if there are none.

        Raises:
            RecordingError: The model returned a handle of another instance.
        """
        assert self.run is not None and self.run.ended, "it has ended"
        self.run.asked = returned_handles(self.run)
        return bool(self.run.asked)

    def resolve(self, result: Any, counts: Counts) -> bool:
        """Answers the request, unless it was cancelled.

        Args:
            result: The answer.
            counts: The server's counts, updated before the client sees the answer.

        Returns:
            Whether it was answered.
        """
        if not self.future.claim():
            counts.add(cancelled=1)
            return False
        counts.add(answered=1)
        with suppress(InvalidStateError):  # the client has set a result
            self.future.set_result(result)
        return True

    def fail(self, error: BaseException, counts: Counts, how: str = "failed") -> None:
        """Fails the request with an exception, unless it was cancelled.

        A `BaseException` that is not an `Exception` would end the client's thread or
        event loop, so it is wrapped in a `ServerError` as its cause.

        Args:
            error: The exception.
            counts: The server's counts, updated before the client sees the exception.
            how: The count to update: ``"failed"`` or ``"expired"``.
        """
        if not isinstance(error, Exception):
            error = _harmless(error)
        if not self.future.claim():
            counts.add(cancelled=1)
            return
        counts.add(**{how: 1})
        with suppress(InvalidStateError):
            self.future.set_exception(error)


def _is_of_a_wave(leaf: Any) -> bool:
    """Whether an array may be a view of a wave's array, like values of `eb.value`."""
    if type(leaf) is not np.ndarray or leaf.flags.writeable:
        return False
    return isinstance(leaf.base, np.ndarray) and leaf.base.nbytes > leaf.nbytes


def _harmless(error: BaseException) -> ServerError:
    """Wraps an exception that would end the client's program."""
    try:
        text = f" ({shown(error)})"
    except BaseException:  # its `__repr__` may also raise any exception
        text = ""
    found = ServerError(
        f"the request raised {type(error).__name__}{text}, which is not an Exception"
        " and would end a program or a task; only this request was ended; raise an"
        " Exception in the model, and call sys.exit outside"
    )
    found.__cause__ = error
    return found


def copy_of(error: BaseException) -> BaseException:
    """Returns a copy of an exception, for one of several requests that it ends.

    Raising an exception adds frames to its traceback, so requests that share one would
    keep alive, and show, the frames of each other's clients.

    Args:
        error: The exception.

    Returns:
        The copy; the exception itself if it cannot be copied.
    """
    try:
        found = copy.copy(error)
    except Exception:
        return error
    if type(found) is not type(error) or str(found) != str(error):
        return error
    found.__cause__, found.__context__ = error.__cause__, error.__context__
    found.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        found.__notes__ = list(error.__notes__)
    return found.with_traceback(error.__traceback__)


def late(request: Request) -> DeadlineError:
    """Returns the error for a request whose deadline has passed."""
    assert request.deadline is not None, "it has a deadline"
    allowed = 1e3 * (request.deadline - request.submitted)
    return DeadlineError(
        f"the request was not answered within its deadline of {_shown(allowed)} ms, and"
        " what was left of it did not run; allow more time, or send fewer requests"
    )


def _shown(milliseconds: float) -> str:
    """Formats milliseconds with as many digits as a time difference is accurate to."""
    return f"{milliseconds:,.{6 if milliseconds >= 1 else 3}g}"
