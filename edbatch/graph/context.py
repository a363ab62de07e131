"""The context of a thread: whether calls of cells are run or recorded."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class CallRecorder(Protocol):
    """Records calls of cells as nodes, while a model is recorded."""

    def call(self, cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records one call; returns handles in the structure of the cell's output."""

    def value(self, tree: Any) -> Any:
        """Returns the values of handles as NumPy arrays; raises if there are none."""


class KeySource(Protocol):
    """Provides keys for the calls of an instance while its model runs unbatched."""

    def next(self) -> Any:
        """Returns the key of the next call."""

    def give_back(self) -> None:
        """Takes back the last key, whose call failed; the next call gets it."""


class ValueSource(Protocol):
    """Provides values to a model that runs unbatched, in place of those it computes."""

    def next(self, tree: Any) -> Any:
        """Returns the values of a tree that the model passed to `edbatch.value`."""


class _Context(threading.local):
    """The state of one thread."""

    recorder: CallRecorder | None = None
    keys: KeySource | None = None
    values: ValueSource | None = None
    jit: bool = False  # whether cells that run unbatched are compiled
    exact: bool = False  # whether 1 and True in static fields are compiled separately
    jitted: dict[Any, dict[Any, Any]] | None = None  # by cell; None: kept by the cells
    compute_dtype: Any = None  # dtype of cells; see `edbatch.graph.compute_dtype`
    inside: bool = False  # whether the function of a cell is running


context = _Context()


@contextmanager
def jitted_cells(*, exact: bool = False) -> Iterator[None]:
    """Compiles each cell separately while models run unbatched in this context.

    Args:
        exact: Whether a cell is compiled again for a number in a static field that is
            equal to an earlier one but not the same, such as 1 and True. JAX treats
            them as the same; distinguishing them takes some microseconds per call.
    """
    before = context.jit, context.exact
    context.jit, context.exact = True, exact
    try:
        yield
    finally:
        context.jit, context.exact = before


@contextmanager
def jitted_apart(jitted: dict[Any, dict[Any, Any]]) -> Iterator[None]:
    """Keeps compiled cells in a dictionary, not with the cells, in this context.

    A function that was compiled earlier may have read variables that have changed
    since. Inside another such context, the outer dictionary stays in use.

    Args:
        jitted: The compiled functions, by cell.
    """
    before = context.jitted
    if before is None:
        context.jitted = jitted
    try:
        yield
    finally:
        context.jitted = before


@contextmanager
def inside_cell() -> Iterator[None]:
    """Makes cells plain functions while the function of a recorded cell runs."""
    before = context.recorder, context.keys, context.inside
    context.recorder, context.keys, context.inside = None, None, True
    try:
        yield
    finally:
        context.recorder, context.keys, context.inside = before


@contextmanager
def given_values(source: ValueSource) -> Iterator[None]:
    """Gives models that run unbatched in this context the values of another run.

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
