"""The context of a thread: whether calls of cells run or are recorded."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class CallRecorder(Protocol):
    """Records calls of cells as nodes, while a model is recorded."""

    def call(self, cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records one call; returns handles in the structure of the cell's output."""

    def value(self, tree: Any) -> Any:
        """Returns the values of handles, as arrays of NumPy, if it can."""


class KeySource(Protocol):
    """Gives the calls of an instance their keys, while its model runs unbatched."""

    def next(self) -> Any:
        """Returns the key of the next call."""

    def give_back(self) -> None:
        """Gives the last key to the next call, since its own has failed."""


class ValueSource(Protocol):
    """Gives a model that runs unbatched values in place of its own."""

    def next(self, tree: Any) -> Any:
        """Returns the values that the model gets for what it asks for."""


class _Context(threading.local):
    """The state of one thread."""

    recorder: CallRecorder | None = None
    keys: KeySource | None = None
    values: ValueSource | None = None
    jit: bool = False  # cells that run unbatched are compiled
    exact: bool = False  # these are told apart by numbers in static fields, too
    compute_dtype: Any = None  # that cells run in; see `edbatch.graph.compute_dtype`
    inside: bool = False  # the function of a recorded cell runs


context = _Context()


@contextmanager
def jitted_cells(*, exact: bool = False) -> Iterator[None]:
    """Compiles each cell by itself while models run unbatched in this context.

    Args:
        exact: Whether a cell is compiled anew for a number in a static field that is
            equal to another one but not the same, such as 1 and True. JAX takes them
            for one; to tell them apart takes some microseconds for each call.
    """
    before = context.jit, context.exact
    context.jit, context.exact = True, exact
    try:
        yield
    finally:
        context.jit, context.exact = before


@contextmanager
def inside_cell() -> Iterator[None]:
    """Makes cells plain functions, while the function of a recorded cell runs."""
    before = context.recorder, context.keys, context.inside
    context.recorder, context.keys, context.inside = None, None, True
    try:
        yield
    finally:
        context.recorder, context.keys, context.inside = before


@contextmanager
def given_values(source: ValueSource) -> Iterator[None]:
    """Gives models that run unbatched in this context values of another run.

    Args:
        source: The values.

    Yields:
        Nothing.
    """
    before, context.values = context.values, source
    try:
        yield
    finally:
        context.values = before
