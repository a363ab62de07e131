"""Base classes of both hot paths of recording, and the choice between them.

Recording runs once per node, in `python_recording` or, if the extension module was
built, in `compiled_recording`; both record the same graphs. The classes below declare
the fields that both use. The compiled classes store these fields in C.
"""

import importlib
import os
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edbatch.graph.context import context

_EXTENSION = "edbatch.graph.compiled_recording"
_VERSION = 5  # version of the extension that matches these sources


def _has_extension() -> bool:
    if os.environ.get("EDBATCH_NO_EXTENSIONS", "0") not in ("", "0"):
        return False
    try:
        extension = importlib.import_module(_EXTENSION)
    except ImportError:
        return False
    # After an update of a clone, the extension may be outdated until it is rebuilt.
    return getattr(extension, "VERSION", None) == _VERSION


_IS_COMPILED = _has_extension()


def recording_is_compiled() -> bool:
    """Tells whether models are recorded by compiled code.

    Compiled code is not used if edbatch was installed without a C compiler, or if
    ``EDBATCH_NO_EXTENSIONS=1`` is set in the environment, at installation or at import.
    Recordings are then the same, but take three to eight times as long.

    Returns:
        Whether compiled code is used.

    Example:
        >>> recording_is_compiled() in (True, False)
        True
    """
    return _IS_COMPILED


Branch = defaultdict[Any, Any]


def _new_branch() -> Branch:
    return defaultdict(_new_branch)


if TYPE_CHECKING or not _IS_COMPILED:

    class HandleSlots:
        """The fields of a handle.

        Attributes:
            _recorder: The tape of the handle's instance.
            _value: Number of the value that the handle stands for.
            _kind: Array kind of the value.
        """

        __slots__ = ("_kind", "_recorder", "_value")

        # No __init__: code that creates handles sets the slots, which is twice as fast.
        _kind: int
        _recorder: Any
        _value: int

    class TapeColumns:
        """The columns of a tape, to which recording appends; see `Tape`."""

        num_values: int
        node_limit: int

        def clear_columns(self) -> None:
            """Empties all columns; compiled code has ``array.array`` for the lists."""
            self.node_type: list[int] = []
            self.operands: list[int] = []
            self.external_rows: list[int] = []
            self.externals: defaultdict[int, list[Any]] = defaultdict(list)

    class KnownType:
        """The data of a type for recording, with the structure of its output handles.

        Args:
            id: Position in the table of types.
            external_kinds: Array kind per external slot.
            output_kinds: Array kind per output.
            form: Form of the cell's output: ``"leaf"``, one array; ``"tuple"``, a tuple
                of arrays; ``"other"``.
            outputs: Creates the handles, given the instance's tape and the first value.
        """

        __slots__ = ("external_kinds", "id", "num_outputs", "outputs", "pair")

        def __init__(
            self,
            id: int,
            external_kinds: tuple[int, ...],
            output_kinds: tuple[int, ...],
            form: str,
            outputs: Callable[[Any, int], Any],
        ) -> None:
            self.id = id
            self.external_kinds = external_kinds
            self.num_outputs = len(output_kinds)
            # A pair such as (h, c) is so common that `call` builds it itself.
            is_pair = form == "tuple" and len(output_kinds) == 2
            self.pair = output_kinds if is_pair else None
            self.outputs = outputs

    class SignatureTable:
        """Earlier calls, as a tree: by cell, then by the structure of the arguments.

        Attributes:
            root: Branches by cell.
        """

        def __init__(self) -> None:
            self.root = _new_branch()

    class TapeWriter:
        """Fields of the writer of one instance's part of a tape; see `InstanceTape`."""

        tape: Any
        types: Any
        _instance: int
        _keys: int
        _memory: Any

        def call(self, cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Records one call of a cell."""
            raise NotImplementedError

    class CellCall:
        """The call of a cell, and the fields that it reads; see `Cell`."""

        plain: bool
        takes_rng: bool

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Runs the function, or records a node while a model is recorded."""
            recorder = context.recorder
            if recorder is not None:
                return recorder.call(self, args, kwargs)
            return self._run_now(args, kwargs)

        def _run_now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            raise NotImplementedError

else:
    from edbatch.graph.compiled_recording import (
        CellCall,
        HandleSlots,
        KnownType,
        SignatureTable,
        TapeColumns,
        TapeWriter,
    )

__all__ = [
    "CellCall",
    "HandleSlots",
    "KnownType",
    "SignatureTable",
    "TapeColumns",
    "TapeWriter",
    "recording_is_compiled",
]
