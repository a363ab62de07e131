"""One running instance of a model; it is suspended where it asks for values."""

import sys
from typing import Any

import jax
import numpy as np
from greenlet import GreenletExit

from edbatch.cell.jaxpr import is_tracing
from edbatch.compilation.jax_settings import changed_settings, thread_settings
from edbatch.errors import RecordingError, user_line
from edbatch.graph.call_memory import CallMemory
from edbatch.graph.context import context
from edbatch.graph.handle import Handle, reject_foreign
from edbatch.graph.parameter_value import parameters_as_values
from edbatch.graph.recorder import Recorder, explain
from edbatch.graph.tape import Tape
from edbatch.graph.value import as_known
from edbatch.waves.call_stacks import Call, CallStack, Returned


class InstanceRun(Recorder):
    """An instance that runs, is suspended, or has ended.

    Args:
        tape: The tape of the next wave, which all instances share.
        memory: Cell calls met while recording.
        index: Number from which the random keys of its cells are derived.
        stacks: Free call stacks; the instance takes one and returns it.

    Attributes:
        index: Number from which the random keys of its cells are derived.
        asked: The handles whose values it waits for.
        result: The model's return value, once the instance has ended.
        ended: Whether the instance has ended.
        released: Whether its rows were freed, or will be before the next wave.
        values: The values that it received, as the leaves of each answer; None if they
            are not kept.
        number: Number by which its runner identifies it.
        parts: For each part, from one suspension to the next, in which it recorded
            nodes: the runner's `takes` then (an index into `WaveRunner.recorded`), the
            first node and the end, the first value and the end.
    """

    def __init__(
        self, tape: Tape, memory: CallMemory, index: int, stacks: list[CallStack]
    ) -> None:
        super().__init__(tape, memory, index)
        self.index = index
        self.asked: list[Handle] = []
        self.result: Any = None
        self.ended = False
        self.released = False
        self.values: list[list[np.ndarray]] | None = None
        self.number = 0
        self.parts: list[tuple[int, int, int, int, int]] = []
        self._closing = False
        self._traced = False
        self._stacks = stacks
        self._stack: CallStack | None = None
        self._settings: tuple[Any, ...] = ()
        self._event_loop: Any = None

    def start(self, call: Call, *, traced: bool = False) -> None:
        """Runs the instance until it asks for values or ends.

        Args:
            call: Runs the model on the instance.
            traced: Whether the caller is being traced. If so, `eb.value` is not refused
                here: the runner of waves raises a better error.

        Raises:
            Exception: Raised by the model.
        """
        self._traced = traced
        self._stack = self._stacks.pop() if self._stacks else CallStack()
        self._run(self._stack.start, call)

    def resume(self, answers: list[np.ndarray]) -> None:
        """Resumes the instance until it asks for values again or ends.

        Args:
            answers: The values that it asked for.

        Raises:
            Exception: Raised by the model.
        """
        assert self._stack is not None, "the instance is suspended"
        self.asked = []
        self._run(self._stack.resume, answers)

    def close(self) -> None:
        """Ends the suspended instance; its ``finally`` clauses run.

        Raises:
            Exception: Raised by its ``finally`` clauses.
        """
        self._closing = True
        if self._stack is not None:
            self._run(CallStack.end, self._stack)

    def _run(self, go_on: Any, argument: Any) -> None:
        outer, context.recorder = context.recorder, self
        self._settings, self._event_loop = thread_settings(), _event_loop()
        try:
            found = go_on(argument)
        finally:
            context.recorder = outer
        if not isinstance(found, Returned):
            self.asked = found
            return
        assert self._stack is not None, "the instance ran"
        self._stacks.append(self._stack)
        self._stack, self.ended, error = None, True, found.error
        if error is None:
            # A copy, kept until all instances have ended: models may reuse an array.
            self.result = parameters_as_values(self, found.result, copies=True)
        elif not (self._closing and isinstance(error, GreenletExit)):
            reason = explain(error) if isinstance(error, Exception) else error
            if reason is error:
                raise error
            raise reason from error

    def value(self, tree: Any) -> Any:
        """Suspends the instance until values are computed; see `edbatch.value`."""
        if type(tree) is Handle and self.values is None:
            return self._ask([tree])[0]
        tree = parameters_as_values(self, tree, copies=True)
        leaves, treedef = jax.tree.flatten(tree)
        handles = [each for each in leaves if type(each) is Handle]
        answers = iter(self._ask(handles) if handles else ())
        found = [
            next(answers) if type(each) is Handle else as_known(each) for each in leaves
        ]
        if self.values is not None:
            self.values.append(found)
        return jax.tree.unflatten(treedef, found)

    def _ask(self, handles: list[Handle]) -> list[np.ndarray]:
        for each in handles:
            if each._recorder is not self:
                reject_foreign(each, f"was passed to eb.value ({user_line()})")
        if self._closing:
            raise GreenletExit
        stack = self._stack
        if stack is None or not stack.is_current or (is_tracing() and not self._traced):
            raise RecordingError(
                f"eb.value was called ({user_line()}) inside a function that JAX traces"
                " or in another greenlet, where an instance cannot wait; call it in the"
                " model itself"
            )
        if (now := thread_settings()) != self._settings:
            changed = ", ".join(changed_settings(self._settings, now))
            raise RecordingError(
                f"eb.value was called ({user_line()}) where {changed} differs from what"
                " it was when the instance was resumed: JAX settings are per thread, so"
                " while this instance waits they would apply to other instances; leave"
                " the context manager before eb.value, or set it around the call of the"
                " batched function"
            )
        if _event_loop() is not self._event_loop:
            raise RecordingError(
                f"eb.value was called ({user_line()}) in an event loop of asyncio that"
                " the model runs: a thread has one event loop at a time, so while this"
                " instance waits, others would run in it; call eb.value before or after"
                " asyncio.run"
            )
        answers: list[np.ndarray] = stack.suspend(handles)
        return answers

    def cell_of_value(self, value: int) -> str | None:
        """Names the cell that computes a value; None if it ran in another wave."""
        first = self.tape.num_values - sum(
            len(self.types.types[each].output_kinds) for each in self.tape.node_type
        )
        if not first <= value < self.tape.num_values:
            return None
        return super().cell_of_value(value - first)


def _event_loop() -> Any:
    """Returns the asyncio event loop that runs in this thread, if any."""
    asyncio = sys.modules.get("asyncio.events")
    return asyncio._get_running_loop() if asyncio else None
