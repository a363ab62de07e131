"""One instance of a model while it runs: it is suspended where it asks for values.

Each instance runs in a greenlet, a call stack of its own, so `eb.value` may stand at
any depth of calls: in recursion, comprehensions, generators and methods. A switch takes
0.2 µs at any depth; a generator's ``send`` through 50 ``yield from`` takes 1 µs and the
whole model has to be generators then; a thread takes 11 µs.
"""

import contextvars
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from edbatch.cell.jaxpr import is_tracing
from edbatch.errors import RecordingError, user_line
from edbatch.graph.call_memory import CallMemory
from edbatch.graph.context import context
from edbatch.graph.handle import Handle, reject_foreign
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.recorder import Recorder, explain
from edbatch.graph.tape import Tape


class InstanceRun(Recorder):
    """An instance that runs, is suspended, or has ended.

    Args:
        tape: The tape of the wave to come, which all instances share.
        memory: Calls met while recording.
        index: The number of the instance; its cells' keys follow from it.
        call: Runs the model on the instance.

    Attributes:
        index: The number of the instance.
        asked: The handles whose values it waits for.
        result: What the model returned, once it has ended.
        ended: Whether it has.
        parts: Per wave its number, and the first and last node and value of the
            instance in it.
    """

    def __init__(
        self, tape: Tape, memory: CallMemory, index: int, call: Callable[[], Any]
    ) -> None:
        super().__init__(tape, memory, index)
        self.index = index
        self.asked: list[Handle] = []
        self.result: Any = None
        self.ended = False
        self.parts: list[tuple[int, int, int, int, int]] = []
        self._hub: greenlet | None = None
        self._closing = False
        self._greenlet = greenlet(call)
        self._greenlet.gr_context = contextvars.copy_context()

    def resume(self, answers: list[np.ndarray] | None = None) -> None:
        """Runs the instance until it asks for values or ends.

        Args:
            answers: The values that it asked for; None at its start.

        Raises:
            Exception: What the model raised.
        """
        outer, context.recorder = context.recorder, self
        own = self._greenlet
        self._hub = own.parent = getcurrent()
        self.asked = []
        try:
            found = own.switch() if answers is None else own.switch(answers)
        except Exception as error:
            self.ended = True
            reason = explain(error)
            if reason is error:
                raise
            raise reason from error
        except BaseException:
            self.ended = True
            raise
        finally:
            context.recorder = outer
        if own.dead:
            self.result, self.ended = found, True

    def close(self) -> None:
        """Ends the instance where it is suspended; its ``finally`` clauses run.

        Raises:
            Exception: What they raised.
        """
        self._closing = True
        if not self.ended:
            self.ended = True
            outer, context.recorder = context.recorder, self
            self._hub = self._greenlet.parent = getcurrent()
            try:
                self._greenlet.throw(GreenletExit)
            finally:
                context.recorder = outer

    def value(self, tree: Any) -> Any:
        """Suspends the instance until values are there; see `edbatch.value`."""
        if type(tree) is Handle:
            return self._ask([tree])[0]
        leaves, treedef = jax.tree.flatten(tree)
        handles = [each for each in leaves if type(each) is Handle]
        answers = iter(self._ask(handles) if handles else ())
        found = [
            next(answers) if type(each) is Handle else _array(each) for each in leaves
        ]
        return jax.tree.unflatten(treedef, found)

    def _ask(self, handles: list[Handle]) -> list[np.ndarray]:
        for each in handles:
            if each._recorder is not self:
                reject_foreign(each)
        if self._closing:
            raise GreenletExit
        if is_tracing() or getcurrent() is not self._greenlet:
            raise RecordingError(
                f"eb.value was called ({user_line()}) inside a function that JAX traces"
                " or in another greenlet, where an instance cannot wait; call it in the"
                " model itself"
            )
        self.asked = handles
        assert self._hub is not None, "whoever runs an instance is its hub"
        answers: list[np.ndarray] = self._hub.switch()
        return answers

    def cell_of_value(self, value: int) -> str:
        """Names the cell whose node has an output; for messages."""
        first = self.tape.num_values - sum(
            len(self.types.types[each].output_kinds) for each in self.tape.node_type
        )
        if value < first:
            return "of an earlier wave"
        return super().cell_of_value(value - first)


def _array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, ParameterPath):
        raise RecordingError(
            f"eb.value was asked for {leaf!r}, a parameter ({user_line()}); ask for"
            " what cells return, and wrap a parameter in a cell to look at it"
        )
    return np.asarray(leaf)
