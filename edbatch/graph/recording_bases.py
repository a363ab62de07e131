"""Base classes of both hot paths of recording, and the choice between them.

Recording runs once per node, in `python_recording` or, where an extension module was
built, in `compiled_recording`; both record the same graphs. The classes below hold the
fields that they work on. The compiled ones hold them in C.
"""

import importlib
import os
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from edbatch.graph.context import context

_EXTENSION = "edbatch.graph.compiled_recording"
_VERSION = 5  # of the extension that these sources go with


def _has_extension() -> bool:
    if os.environ.get("EDBATCH_NO_EXTENSIONS", "0") not in ("", "0"):
        return False
    try:
        extension = importlib.import_module(_EXTENSION)
    except ImportError:
        return False
    # In a clone that was updated it may be an old one, until it is built again.
    return getattr(extension, "VERSION", None) == _VERSION


_IS_COMPILED = _has_extension()


def recording_is_compiled() -> bool:
    """Tells whether models are recorded by compiled code.

    It is left out where edbatch was installed without a C compiler, and wherever
    ``EDBATCH_NO_EXTENSIONS=1`` stands in the environment, at installation or at import.
    What is recorded is the same, three to eight times slower.

    Returns:
        Whether it runs.

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
            _recorder: The tape of its instance.
            _value: Number of the value that it stands for.
            _kind: Array kind of the value.
        """

        __slots__ = ("_kind", "_recorder", "_value")

        # No __init__: who makes handles sets the slots, twice as fast.
        _kind: int
        _recorder: Any
        _value: int

    class TapeColumns:
        """The columns of a tape, to which recording appends; see `Tape`."""

        num_values: int
        node_limit: int

        def clear_columns(self) -> None:
            """Makes all of them empty. The compiled ones are of class ``array``."""
            self.node_type: list[int] = []
            self.operands: list[int] = []
            self.external_rows: list[int] = []
            self.externals: defaultdict[int, list[Any]] = defaultdict(list)

    class KnownType:
        """A type as recording needs it, with the structure of its output handles.

        Args:
            id: Its position in the table of types.
            external_kinds: Array kind per external slot.
            output_kinds: Array kind per output.
            form: What the cell returns: ``"leaf"``, one array; ``"tuple"``, a tuple of
                arrays; ``"other"``.
            outputs: Makes the handles, given the instance's tape and the first value.
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
        """Calls met before, as a tree: by cell, then by the structure of the arguments.

        Attributes:
            root: Branches by cell.
        """

        def __init__(self) -> None:
            self.root = _new_branch()

    class TapeWriter:
        """The fields of what writes on a tape for one instance; see `InstanceTape`."""

        tape: Any
        types: Any
        _instance: int
        _keys: int
        _memory: Any

        def call(self, cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            """Records one call of a cell."""
            raise NotImplementedError

    class CellCall:
        """The call of a cell, and what it looks at; see `Cell`."""

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
