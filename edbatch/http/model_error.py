"""Distinguishes errors of a model for one input from errors of the server."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from greenlet import GreenletExit

from edbatch.batched import Batched
from edbatch.errors import EdbatchError, raising_line
from edbatch.front_door import batch
from edbatch.schedule.interrupt import is_ctrl_c
from edbatch.state_registry import StateRegistry

_LONGEST = 300  # characters of a message that a client is shown


class InputError(Exception):
    """The user's own code raised an exception for this input.

    Covers every exception except Ctrl-C, since `SystemExit` must end neither the server
    nor the event loop.

    Args:
        error: The exception.

    Attributes:
        described: Its type and message, and the line of the user's code, for the log.
    """

    def __init__(self, error: BaseException) -> None:
        summary = first_line(error, with_type=True)
        place = raising_line(error)
        self._set(summary, f"{summary} ({place})" if place else summary)

    def _set(self, summary: str, described: str) -> None:
        super().__init__(f"the model rejected this input: {summary}")
        self._summary, self.described = summary, described

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the messages only, not the traceback and the exception."""
        return _restored, (self._summary, self.described)


def _restored(summary: str, described: str) -> InputError:
    found = InputError.__new__(InputError)
    found._set(summary, described)
    return found


def first_line(error: BaseException, *, with_type: bool = False) -> str:
    """Returns the first line of an exception's message, truncated if long."""
    try:
        line = (str(error).strip().splitlines() or [""])[0]
    except BaseException:  # raised by a user's `__str__`
        line = ""
    if not isinstance(error, EdbatchError) and with_type:
        line = f"{type(error).__name__}: {line}" if line else type(error).__name__
    line = line or type(error).__name__
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 3]}..."


def guarded_batch(model: Callable[[Any, Any], Any] | Batched, policy: Any) -> Batched:
    """Batches a model so that its own exceptions are raised as `InputError`.

    Args:
        model: The model, or a batched function, whose options are kept.
        policy: A policy; None for that of the batched function, or the default.

    Returns:
        The batched function.

    Raises:
        EdbatchError: The policy is unknown, or cannot be read.
    """
    if not isinstance(model, Batched):
        return batch(guarded(model), "greedy" if policy is None else policy)
    options = model.states.options
    if policy is not None:
        options = replace(options, policy=batch(model.model, policy).policy)
    return Batched(StateRegistry(guarded(model.model), options))


def guarded(model: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Wraps a model so that its own exceptions are raised as `InputError`."""

    @functools.wraps(model)
    def own(params: Any, instance: Any) -> Any:
        try:
            return model(params, instance)
        except GreenletExit:  # a suspended instance is being ended
            raise
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            raise InputError(error) from error

    return own
