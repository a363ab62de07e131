"""The tape: growing lists of integers to which recording appends nodes."""

import sys
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, NoReturn

import numpy as np

from edbatch.errors import RecordingError
from edbatch.graph.constants import does_not_fit
from edbatch.graph.dataflow_graph import MISSING
from edbatch.graph.external_input import ABSENT, NUMBERS
from edbatch.graph.host_arrays import may_change, same_bytes
from edbatch.graph.input_pool import stack_inputs, too_wide
from edbatch.graph.node_keys import NODE_KEY
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.recording_bases import TapeColumns, TapeWriter
from edbatch.graph.type_limit import TypeLimit
from edbatch.graph.type_table import TypeTable

_NOT_SHARED = (None, MISSING, MISSING)


class TapeMark(NamedTuple):
    """A position on a tape, to which the tape can be cut back.

    Attributes:
        nodes: Number of nodes before it.
        operands: Number of operand slots of these nodes.
        external_rows: Number of external slots of these nodes.
        externals: Number of rows of each pool.
        num_values: Number of values.
    """

    nodes: int
    operands: int
    external_rows: int
    externals: dict[int, int]
    num_values: int


class Tape(TapeColumns):
    """Growing columns to which several instances record their nodes.

    Attributes:
        types: The model's table of types.
        node_type: Type of each node.
        operands: Value read by each operand slot; values are numbered over the tape.
        external_rows: Row read by each external slot.
        externals: Rows of each array kind's pool.
        shared_rows: By the id of an array: the array, its kind and its row.
        num_values: Number of values.
        node_limit: Maximum number of nodes; see `limit_nodes`.
        type_limit: A limit on the types that are recorded first on this tape, or None;
            types beyond it are not traced.
        refused: Message for the first call that was refused since the limit was set.
        keyless: Whether the whole tape runs without a random key, so that calls of
            cells that need one are refused.
    """

    def __init__(self, types: TypeTable) -> None:
        self.types = types
        self.num_values = 0
        self.node_limit = sys.maxsize
        self.type_limit: TypeLimit | None = None
        self.refused: str | None = None
        self.keyless = False
        self._refusal = ""
        self.clear()

    def clear(self) -> None:
        """Removes all recorded nodes; the numbering of values continues."""
        self.clear_columns()
        self.shared_rows: dict[int, tuple[Any, int, int]] = {}

    def limit_nodes(self, more: int, refusal: str) -> None:
        """Limits the nodes recorded from now on, until the next call of this method.

        Args:
            more: Maximum number of further nodes.
            refusal: Message for calls of cells beyond the limit.
        """
        self.node_limit = min(len(self.node_type) + more, sys.maxsize)
        self.refused = None
        self._refusal = refusal

    def refuse_node(self) -> NoReturn:
        """Raises RecordingError: the tape has reached its node limit."""
        self._refuse(self._refusal)

    def check_new_type(self, cell: str) -> None:
        """Checks that another type, of a cell of this name, may be recorded.

        Raises:
            RecordingError: The limit is reached.
        """
        if self.type_limit is not None and self.is_full_of_types:
            self._refuse(f"cell {cell!r} {self.type_limit.refusal}")

    @property
    def is_full_of_types(self) -> bool:
        """Whether no further type may be recorded first on this tape."""
        return self.type_limit is not None and self.type_limit.left <= 0

    def note_new_type(self) -> None:
        """Counts a type that was recorded first on this tape."""
        if self.type_limit is not None:
            self.type_limit.left -= 1

    def check_refused(self) -> None:
        """Repeats the error of a refused call, in case the model has swallowed it.

        Raises:
            RecordingError: A call was refused.
        """
        if self.refused is not None:
            raise RecordingError(self.refused)

    def _refuse(self, refusal: str) -> NoReturn:
        self.refused = self.refused or refusal
        raise RecordingError(refusal)

    def mark(self) -> TapeMark:
        """Returns the present end of the tape."""
        return TapeMark(
            len(self.node_type),
            len(self.operands),
            len(self.external_rows),
            {kind: len(rows) for kind, rows in self.externals.items()},
            self.num_values,
        )

    def cut_back(self, mark: TapeMark) -> None:
        """Removes everything that was recorded after a mark."""
        del self.node_type[mark.nodes :]
        del self.operands[mark.operands :]
        del self.external_rows[mark.external_rows :]
        for kind, rows in self.externals.items():
            del rows[mark.externals.get(kind, 0) :]
        for key, (_, kind, row) in list(self.shared_rows.items()):
            if row >= mark.externals.get(kind, 0):
                del self.shared_rows[key]
        self.num_values = mark.num_values

    def check_numbers(self, mark: TapeMark) -> None:
        """Checks the external inputs that were recorded after a mark.

        Raises:
            RecordingError: An integer does not fit the dtype that JAX gives it.
        """
        for kind, rows in self.externals.items():
            new = rows[mark.externals.get(kind, 0) :]
            if not new:
                continue
            aval = self.types.kinds.pool_aval(kind)
            if aval.dtype == np.int32 and all(
                type(each) is int and -(2**31) <= each < 2**31 for each in new
            ):
                continue  # the usual case, without making arrays
            if aval.dtype.kind in "iu":
                try:
                    stack_inputs(new, aval)
                except OverflowError:
                    self._pool(kind)

    def pools(self, parts: Sequence[tuple[int, int]] = ()) -> dict[int, np.ndarray]:
        """Stacks the external inputs.

        Args:
            parts: Consecutive parts of the tape: for each, the number of the instance
                that recorded it, which an error names, and how many nodes it has.

        Returns:
            Array kind to ``[rows, ...]``.

        Raises:
            RecordingError: An integer does not fit the dtype that JAX gives it.
        """
        return {kind: self._pool(kind, parts) for kind in self.externals}

    def _pool(self, kind: int, parts: Sequence[tuple[int, int]] = ()) -> np.ndarray:
        rows, aval = self.externals[kind], self.types.kinds.pool_aval(kind)
        try:
            return stack_inputs(rows, aval)
        except OverflowError:
            row, value = too_wide(rows, aval.dtype)
        node = self._reader(kind, row)
        what = "the model returns"
        if node is not None:
            node_type = self.types.types[self.node_type[node]]
            what = f"cell {node_type.key.cell!r} received"
        error = RecordingError(does_not_fit(what, value, aval.dtype))
        if node is not None and len(parts) > 1:
            part = bisect_right(list(accumulate(count for _, count in parts)), node)
            error.add_note(
                f"while recording instance {parts[part][0]} of the minibatch"
            )
        raise error

    def _reader(self, kind: int, row: int) -> int | None:
        """Finds the first node that reads a row of a pool; None if no node does."""
        rows = iter(self.external_rows)
        for node, each in enumerate(self.node_type):
            kinds = self.types.types[each].external_kinds
            if (kind, row) in [(own, next(rows)) for own in kinds]:
                return node
        return None


class InstanceTape(TapeWriter):
    """The part of a tape that one instance writes.

    Attributes:
        tape: The tape.
        types: The model's table of types.
        parameter_handles: Handles of parameters that are used as outputs of cells.
    """

    def __init__(self, tape: Tape, instance: int = 0) -> None:
        self.tape = tape
        self.types = tape.types
        self.parameter_handles: dict[ParameterPath, Any] = {}
        self._instance = instance
        self._keys = 0  # number of calls so far that took a key

    def cell_of_value(self, value: int) -> str | None:
        """Returns the name of the cell of a value; None, in subclasses, if unknown."""
        first = 0
        for each in self.tape.node_type:
            first += len(self.types.types[each].output_kinds)
            if value < first:
                return self.types.types[each].key.cell
        raise AssertionError("a handle's value is on its recorder's tape")

    def append_externals(self, kinds: Sequence[int], values: Sequence[Any]) -> None:
        """Appends the external inputs of a node.

        Args:
            kinds: Array kind per external slot.
            values: Number or array per external slot, `ABSENT` or `NODE_KEY`.
        """
        tape = self.tape
        for kind, value in zip(kinds, values, strict=True):
            if type(value) in NUMBERS:
                rows = tape.externals[kind]
                tape.external_rows.append(len(rows))
                rows.append(value)
            elif value is ABSENT:
                tape.external_rows.append(MISSING)
            elif value is NODE_KEY:
                rows = tape.externals[kind]
                tape.external_rows.append(len(rows))
                rows.append((self._instance, self._keys))
                self._keys += 1
            else:
                tape.external_rows.append(self.array_row(kind, value))

    def array_row(self, kind: int, value: Any) -> int:
        """Returns the row of an array in its pool; an array seen before is shared.

        Args:
            kind: Its array kind.
            value: The array.

        Returns:
            The row.
        """
        rows = self.tape.externals[kind]
        known, its_kind, row = self.tape.shared_rows.get(id(value), _NOT_SHARED)
        # The owner of a NumPy array may have modified it since.
        if (
            known is value
            and its_kind == kind
            and (not may_change(value) or same_bytes(rows[row], value))
        ):
            return row
        # While the array is kept alive, no other array has its id.
        self.tape.shared_rows[id(value)] = (value, kind, len(rows))
        rows.append(value.copy() if may_change(value) else np.asarray(value))
        return len(rows) - 1
