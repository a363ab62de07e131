"""A request to a server, from its submission to its answer."""

import time
from concurrent.futures import InvalidStateError
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from edbatch.errors import DeadlineError, ServerError, shown
from edbatch.graph.handle import Handle
from edbatch.serving.request_future import RequestFuture
from edbatch.waves.asked_values import returned_handles
from edbatch.waves.instance_run import InstanceRun


@dataclass(eq=False)
class Request:
    """One instance to run.

    Attributes:
        instance: The instance.
        number: How many were submitted before it; its cells' keys follow from it.
        priority: Requests of higher priority run first.
        deadline: When it is to be answered, by `time.perf_counter`; or None.
        future: Where its answer goes.
        submitted: When it was submitted.
        run: The instance, once it runs.
    """

    instance: Any
    number: int
    priority: float
    deadline: float | None
    future: RequestFuture = field(default_factory=RequestFuture)
    submitted: float = field(default_factory=time.perf_counter)
    run: InstanceRun | None = None
    first_value: float | None = None

    def is_late(self, now: float) -> bool:
        """Whether its deadline has passed."""
        return self.deadline is not None and now > self.deadline

    def answer(self, values: list[np.ndarray]) -> Any:
        """Returns what the model returned, with values in place of handles.

        They are copied: they stand in the arrays of the whole wave, which a client that
        keeps its answer would keep.
        """
        assert self.run is not None, "it ran"
        found = map(np.array, values)
        return jax.tree.map(
            lambda leaf: next(found) if type(leaf) is Handle else leaf, self.run.result
        )

    def ask_for_result(self) -> bool:
        """Lets an instance that has ended wait for its result; False if it has it.

        Raises:
            RecordingError: It has returned a handle of another instance.
        """
        assert self.run is not None and self.run.ended, "it has ended"
        self.run.asked = returned_handles(self.run)
        return bool(self.run.asked)

    def resolve(self, result: Any) -> bool:
        """Answers; returns whether somebody still waits for it."""
        try:
            self.future.set_result(result)
        except InvalidStateError:
            return False
        return True

    def fail(self, error: BaseException) -> bool:
        """Ends with an exception; returns whether somebody still waits for it.

        What is no `Exception` would end the client's thread or event loop, too, so the
        client gets a `ServerError` that it is the cause of.
        """
        if not isinstance(error, Exception):
            error = _harmless(error)
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            return False
        return True


def _harmless(error: BaseException) -> ServerError:
    """Returns an exception that ends no program, in place of one that may."""
    found = ServerError(
        f"the request raised {type(error).__name__} ({shown(error)}), which is no"
        " Exception but ends a program or a task; it ended this request alone; raise an"
        " Exception in the model, and call sys.exit outside"
    )
    found.__cause__ = error
    return found


def late(request: Request) -> DeadlineError:
    """Returns the error of a request whose deadline has passed."""
    assert request.deadline is not None, "it has a deadline"
    allowed = 1e3 * (request.deadline - request.submitted)
    return DeadlineError(
        f"the request was not answered within its deadline of {allowed:.3g} ms, and"
        " what was left of it did not run; allow more time, or send fewer requests"
    )
