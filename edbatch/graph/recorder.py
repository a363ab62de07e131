"""Recording: running a model on one instance with handles instead of arrays.

`Recorder.call` runs once per node, in Python, while the user waits: it finds the node's
type by the arguments' structure alone, following a tree of the calls met before, and
appends a few integers to flat lists. Only a type's first node is analysed with
``jax.eval_shape``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from edbatch.errors import EdbatchError, RecordingError, raising_line, user_line
from edbatch.graph.call_analysis import ABSENT, CallAnalysis
from edbatch.graph.cell import RNG, Cell, active
from edbatch.graph.dataflow_graph import MISSING, DataflowGraph
from edbatch.graph.external_input import NUMBERS, stack_inputs, too_wide
from edbatch.graph.handle import Handle, new_handle
from edbatch.graph.node_keys import NODE_KEY
from edbatch.graph.node_type import NodeType
from edbatch.graph.outputs import OutputColumns
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.type_table import TypeTable


class Tape:
    """Growing lists that the recordings of one call of `record` share."""

    def __init__(self, types: TypeTable) -> None:
        self.types = types
        self.node_type: list[int] = []
        self.operands: list[int] = []  # value ids, counted over the whole tape
        self.external_rows: list[int] = []
        # Array kind -> rows
        self.externals: defaultdict[int, list[Any]] = defaultdict(list)
        # id -> array, its kind, its row
        self.shared_rows: dict[int, tuple[Any, int, int]] = {}
        self.num_values = 0


_NOT_SHARED = (None, MISSING, MISSING)
Branch = defaultdict[Any, Any]
_CLOSE = None  # the end of a tuple or a list
_END = "end"  # the end of the arguments


def _new_branch() -> Branch:
    return defaultdict(_new_branch)


class CallMemory:
    """Calls met before, as a tree: by cell, then by the structure of the arguments.

    Attributes:
        root: Branches by cell.
    """

    def __init__(self) -> None:
        self.root = _new_branch()
        self._known: dict[NodeType, _Known] = {}

    def known(self, node_type: NodeType) -> "_Known":
        """Returns what recording needs of a type."""
        return self._known.setdefault(node_type, _Known(node_type))


class Recorder:
    """Records one instance onto a tape."""

    def __init__(self, tape: Tape, memory: "CallMemory", instance: int = 0) -> None:
        self.tape = tape
        self.types = tape.types
        self._memory = memory
        self._instance = instance
        self._keys = 0  # calls so far that took a key

    def cell_of_value(self, value: int) -> str:
        """Names the cell whose node has an output; for messages."""
        first = 0
        for each in self.tape.node_type:
            first += len(self.types.types[each].output_kinds)
            if value < first:
                return self.types.types[each].key.cell
        raise AssertionError("a handle's value is on its recorder's tape")

    def call(self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Records one call of a cell.

        Args:
            cell: The cell.
            args: Positional arguments, pytrees of handles, parameters and arrays.
            kwargs: Keyword arguments, likewise.

        Returns:
            The structure of the cell's output, with handles as leaves.
        """
        operands: list[int] = []
        externals: list[Any] = []
        known = None
        takes_key = cell.takes_rng and cell.lacks_rng(args, kwargs)
        named = kwargs | {RNG: NODE_KEY} if takes_key else kwargs
        if not kwargs:
            branch = self._memory.root[cell]
            if cell.plain:
                branch = self._scan(args, branch, operands, externals)
            else:
                branch = self._scan_special(cell, args, branch, operands, externals)
            if branch is not None:
                known = branch.get(_END)
                if known is None:
                    known = branch[_END] = self._analyse(cell, args, named)[0]
                if takes_key:
                    externals.append(NODE_KEY)
        if known is None:
            known, operands, externals = self._analyse(cell, args, named)
        tape = self.tape
        tape.node_type.append(known.id)
        if operands:
            tape.operands += operands
        if externals:
            if len(externals) == 1 and type(externals[0]) in NUMBERS:  # a word
                rows = tape.externals[known.external_kinds[0]]
                tape.external_rows.append(len(rows))
                rows.append(externals[0])
            else:
                self._append_externals(known.external_kinds, externals)
        first = tape.num_values
        tape.num_values = first + known.num_outputs
        pair = known.pair
        if pair is not None:
            one, other = Handle(), Handle()
            one._recorder = other._recorder = self
            one._value = first
            other._value = first + 1
            one._kind, other._kind = pair
            return one, other
        return known.outputs(self, first)

    def _scan(
        self,
        args: Iterable[Any],
        branch: Branch,
        operands: list[int],
        externals: list[Any],
    ) -> Branch | None:
        """Reads common arguments fast; None if some need the general analysis.

        Follows one branch per argument: the kind of a handle, the class of a number, a
        parameter itself; a tuple or a list opens with its class and ends with `_CLOSE`.
        """
        for arg in args:
            kind = type(arg)
            if kind is Handle:
                if arg._recorder is not self:
                    self.reject_foreign(arg)
                branch = branch[arg._kind]
                operands.append(arg._value)
            elif kind is tuple or kind is list:
                branch = branch[kind]
                for each in arg:  # handles as the recursion would, without its calls
                    if type(each) is Handle and each._recorder is self:
                        branch = branch[each._kind]
                        operands.append(each._value)
                        continue
                    inner = self._scan((each,), branch, operands, externals)
                    if inner is None:
                        return None
                    branch = inner
                branch = branch[_CLOSE]
            elif kind is ParameterPath:
                branch = branch[arg]
            elif kind in NUMBERS:
                branch = branch[kind]
                externals.append(arg)
            elif kind is np.ndarray:
                branch = branch[arg.shape, arg.dtype]
                externals.append(arg)
            else:
                return None
        return branch

    def _scan_special(
        self,
        cell: Cell,
        args: tuple[Any, ...],
        branch: Branch,
        operands: list[int],
        externals: list[Any],
    ) -> Branch | None:
        """As `_scan`, for a cell that has padded or static arguments."""
        found: Branch | None = branch
        for position, arg in enumerate(args):
            if position not in cell.special:
                found = self._scan((arg,), branch, operands, externals)
            elif position in cell.static_positions:
                name = cell.static_positions[position]
                found = branch["static", cell.constant(arg, name)]
            else:
                found = self._scan_padded(cell, arg, branch, operands)
            if found is None:
                return None
            branch = found
        return branch

    def _scan_padded(
        self, cell: Cell, elements: Any, branch: Branch, operands: list[int]
    ) -> Branch | None:
        if type(elements) is not list or not elements:
            return None
        length = cell.padded_length(len(elements))
        start = branch["padded", length]
        found: list[int] = []
        none: list[Any] = []
        end: Branch | None = None
        for element in elements:
            ended = self._scan((element,), start, found, none)
            if ended is None or none or (end is not None and ended is not end):
                return None  # elements that differ: the analysis says how
            end = ended
        width = len(found) // len(elements)
        absent = [MISSING] * (length - len(elements))
        for leaf in range(width):
            operands += found[leaf::width]
            operands += absent
        return end

    def _append_externals(self, kinds: Sequence[int], values: list[Any]) -> None:
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
        """Returns the row of an array in its pool; an array seen before is shared."""
        rows = self.tape.externals[kind]
        known, its_kind, row = self.tape.shared_rows.get(id(value), _NOT_SHARED)
        # The owner of a NumPy array may have changed it since.
        if (
            known is value
            and its_kind == kind
            and (not _may_change(value) or rows[row].tobytes() == value.tobytes())
        ):
            return row
        # Keeping the array alive keeps its id its own.
        self.tape.shared_rows[id(value)] = (value, kind, len(rows))
        rows.append(value.copy() if _may_change(value) else np.asarray(value))
        return len(rows) - 1

    def _analyse(
        self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple["_Known", list[int], list[Any]]:
        call = CallAnalysis(self, cell)
        template = call.template(args, kwargs)
        node_type = self.types.intern(
            cell,
            template,
            tuple(call.operand_kinds),
            tuple(call.external_kinds),
        )
        return self._memory.known(node_type), call.operands, call.externals

    def reject_foreign(self, handle: Handle) -> NoReturn:
        """Raises the error for a handle of another recording."""
        raise RecordingError(
            f"a handle from another recording was passed to a cell ({user_line()}):"
            f" {handle!r} belongs to another instance, or to an earlier recording;"
            " compute it inside this model call, or pass it as an array"
        )


class _Known:
    """What `Recorder.call` needs of a type, and how to build its output handles."""

    __slots__ = ("external_kinds", "id", "num_outputs", "outputs", "pair")

    def __init__(self, node_type: NodeType) -> None:
        self.id = node_type.id
        self.external_kinds = node_type.external_kinds
        kinds = node_type.output_kinds
        self.num_outputs = len(kinds)
        tree = node_type.output_tree
        # A pair such as (h, c) is so common that `call` builds it itself.
        self.pair = kinds if tree == jax.tree.structure((0, 0)) else None
        self.outputs: Callable[[Recorder, int], Any]
        if jax.tree_util.treedef_is_leaf(tree):
            kind = kinds[0]
            self.outputs = lambda rec, first: new_handle(rec, first, kind)
        else:
            self.outputs = lambda rec, first: jax.tree.unflatten(
                tree, [new_handle(rec, first + k, kind) for k, kind in enumerate(kinds)]
            )


def _may_change(value: Any) -> bool:
    """Whether somebody may write to an array: to it, or to one that it is a view of."""
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return True
        value = value.base
    return False


def record(
    model: Callable[[Any, Any], Any],
    types: TypeTable,
    instances: Iterable[Any],
    memory: CallMemory | None = None,
) -> DataflowGraph:
    """Records a model on instances, one after the other, into one graph.

    Args:
        model: Called as ``model(params, instance)``; ``params`` is the stand-in.
        types: The model's table of types; it grows.
        instances: Inputs of the model.
        memory: Memory of calls met before; pass it again to record faster.

    Returns:
        The dataflow graph of all instances, topologically ordered.

    Raises:
        RecordingError: The model computes outside cells.
        CellError: A cell cannot be traced.
        PlanError: The table was made under the other setting of ``jax_enable_x64``.
    """
    types.require_setting("the table of types")
    tape = Tape(types)
    memory = CallMemory() if memory is None else memory
    outputs = OutputColumns()
    num_nodes: list[int] = []
    outer = active.recorder
    try:
        for index, instance in enumerate(instances):
            before = len(tape.node_type)
            recorder = active.recorder = Recorder(tape, memory, index)
            try:
                outputs.add(recorder, model(types.params, instance))
            except Exception as error:
                reason = _explain(error)
                if not (isinstance(instances, Sequence) and len(instances) == 1):
                    note = f"while recording instance {index} of the minibatch"
                    reason.add_note(note)
                if reason is error:
                    raise
                raise reason from error
            num_nodes.append(len(tape.node_type) - before)
    finally:
        active.recorder = outer
    return DataflowGraph(
        types=types,
        node_type=np.array(tape.node_type, np.int32),
        operands=np.array(tape.operands, np.int32),
        external_rows=np.array(tape.external_rows, np.int32),
        externals={kind: _stack_externals(tape, kind) for kind in tape.externals},
        outputs=outputs.finish(types.skeletons),
        instance_nodes=np.array(num_nodes, np.int32),
        num_values=tape.num_values,
    )


def _explain(error: Exception) -> Exception:
    """Turns JAX's complaint about a handle into the error that a user can mend."""
    text = str(error)
    if isinstance(error, EdbatchError) or not isinstance(
        error, (TypeError, ValueError)
    ):
        return error
    if not ("'Handle'" in text or "graph.handle." in text or "ParameterPath" in text):
        return error
    return RecordingError(
        f"a JAX operation was applied to a handle or a parameter outside a cell"
        f" ({raising_line(error)}): it has no value while the model is recorded; move"
        " the computation into a function marked with @eb.cell"
    )


def _stack_externals(tape: Tape, kind: int) -> np.ndarray:
    rows, aval = tape.externals[kind], tape.types.pool_aval(kind)
    try:
        return stack_inputs(rows, aval)
    except OverflowError:
        row, value = too_wide(rows, aval.dtype)
        bits = 8 * aval.dtype.itemsize
        error = RecordingError(
            f"{_reader(tape, kind, row)} {value}, which does not fit {aval.dtype}:"
            f" JAX has integers of {bits} bits at most"
            + (
                " here; enable jax_enable_x64, or make the numbers smaller outside of"
                " cells (hashes by %, ids by numbering what there is)"
                if bits < 64
                else "; pass a float, or the number in several parts"
            )
        )
    raise error


def _reader(tape: Tape, kind: int, row: int) -> str:
    """Names the first call that reads a row of a pool; for messages."""
    rows = iter(tape.external_rows)
    for each in tape.node_type:
        node_type = tape.types.types[each]
        for found in [(own, next(rows)) for own in node_type.external_kinds]:
            if found == (kind, row):
                return f"cell {node_type.key.cell!r} received"
    return "the model returns"
