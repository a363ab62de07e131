"""Handles: placeholders for arrays, returned by recorded cells."""

from typing import Any, NoReturn

import numpy as np

from edbatch.errors import PickleError, RecordingError, user_line
from edbatch.graph.recording_bases import HandleSlots
from edbatch.graph.stand_in import stand_in
from edbatch.graph.tape import InstanceTape


@stand_in
class Handle(HandleSlots):
    """One output array of one recorded node.

    A handle can be passed to cells, given to `edbatch.value` or returned from the
    model: its shape and dtype are known, its value is not.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(x):
        ...     return 2 * x
        >>> def model(params, x):
        ...     y = double(x)
        ...     if isinstance(y, eb.Handle):  # an array where the model runs by itself
        ...         print(y.shape, y.dtype, y.ndim)
        ...     return y
        >>> graph = eb.batch(model, params=()).graph([1.0])
        () float32 0
    """

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that this handle stands for."""
        return self._recorder.types.avals[self._kind].shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the array that this handle stands for."""
        return self._recorder.types.avals[self._kind].dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array that this handle stands for."""
        return len(self.shape)

    def __repr__(self) -> str:
        cell = self._recorder.cell_of_value(self._value)
        source = "a cell" if cell is None else f"cell {cell!r}"
        return f"Handle({self.dtype}{list(self.shape)} from {source})"

    def _reject(self, operation: str) -> NoReturn:
        raise RecordingError(
            f"{operation} outside a cell ({user_line()}): the value is {self!r}, which"
            " is not computed yet while the model is recorded; move the computation"
            " into a function marked with @eb.cell, or, if the model has to look at it,"
            " ask for eb.value(...) of it"
        )

    def __reduce__(self) -> NoReturn:
        """Raises PickleError: a handle belongs to a recording that is in progress."""
        raise PickleError(
            f"{self!r} is not computed yet while the model is recorded, so it cannot be"
            f" pickled ({user_line()}); pickle the recording"
        )

    def __getitem__(self, index: Any) -> NoReturn:
        self._reject(f"indexing with [{index!r}]")

    def __iter__(self) -> NoReturn:
        self._reject("iteration or unpacking")

    def __len__(self) -> NoReturn:
        self._reject("len()")

    def __format__(self, spec: str) -> str:
        if spec:
            self._reject(f"formatting with {spec!r}")
        return repr(self)

    def __bool__(self) -> NoReturn:
        self._reject("a branch (if, while, and, or)")

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._reject("conversion to a NumPy array")

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        self._reject("a comparison (==, !=, in)")

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in dir(np.ndarray):
            raise AttributeError(f"a handle has no attribute {name!r}")
        return self._reject(f"array method .{name}")


def new_handle(recorder: InstanceTape, value: int, kind: int) -> Handle:
    """Creates a handle.

    Args:
        recorder: The tape of the handle's instance.
        value: Number of the value that the handle stands for.
        kind: Array kind of the value.

    Returns:
        The handle.
    """
    handle = Handle()
    handle._recorder = recorder
    handle._value = value
    handle._kind = kind
    return handle


def reject_foreign(handle: Handle, where: str | None = None) -> NoReturn:
    """Raises the error for a handle of another recording.

    Args:
        handle: The handle.
        where: What the model did with the handle; None if it passed it to a cell, in
            which case the line is looked up.

    Raises:
        RecordingError: Always.
    """
    where = where or f"was passed to a cell ({user_line()})"
    raise RecordingError(
        f"a handle from another recording {where}: {handle!r} belongs to another"
        " instance, or to an earlier recording; compute it inside this model call, or"
        " keep its value, an array"
    )
