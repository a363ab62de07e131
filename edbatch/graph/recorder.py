"""Recording: running a model on one instance with handles instead of arrays.

`Recorder.call` runs once per node, in Python, while the user waits: it finds the node's
type by the arguments' structure alone, following a tree of the calls met before, and
appends a few integers to flat lists. Only a type's first node is analysed with
``jax.eval_shape``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from edbatch.errors import EdbatchError, RecordingError, raising_line, user_line
from edbatch.graph.call_analysis import CallAnalysis
from edbatch.graph.call_memory import Branch, CallMemory, KnownType
from edbatch.graph.cell import RNG, Cell
from edbatch.graph.context import context
from edbatch.graph.dataflow_graph import MISSING, DataflowGraph
from edbatch.graph.external_input import NUMBERS
from edbatch.graph.handle import Handle, reject_foreign
from edbatch.graph.node_keys import NODE_KEY
from edbatch.graph.output_recording import OutputColumns
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.stand_in import is_about_stand_in
from edbatch.graph.tape import InstanceTape, Tape
from edbatch.graph.type_checks import require_setting
from edbatch.graph.type_table import TypeTable

_CLOSE = None  # the end of a tuple or a list
_END = "end"  # the end of the arguments


class AsksForValueError(RecordingError):
    """A model that is only recorded asks for a value."""


class Recorder(InstanceTape):
    """Records one instance onto a tape."""

    def __init__(self, tape: Tape, memory: CallMemory, instance: int = 0) -> None:
        super().__init__(tape, instance)
        self._memory = memory

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
                self.append_externals(known.external_kinds, externals)
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

    def value(self, tree: Any) -> Any:
        """Raises `AsksForValueError`: while a model is recorded, no cell runs."""
        raise AsksForValueError(
            f"the model asks for a value ({user_line()}), but .record, .graph and .plan"
            " run no cell, so there is none; call the batched function on instances, or"
            " batched.rollout, whose recordings can be kept, planned and"
            " differentiated, without other recordings beside them"
        )

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
                    reject_foreign(arg)
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

    def _analyse(
        self, cell: Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[KnownType, list[int], list[Any]]:
        call = CallAnalysis(self, cell)
        template = call.template(args, kwargs)
        node_type = self.types.intern(
            cell,
            template,
            tuple(call.operand_kinds),
            tuple(call.external_kinds),
        )
        return self._memory.known(node_type), call.operands, call.externals


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
    require_setting(types, "the table of types")
    tape = Tape(types)
    memory = CallMemory() if memory is None else memory
    outputs = OutputColumns()
    num_nodes: list[int] = []
    outer = context.recorder
    try:
        for index, instance in enumerate(instances):
            before = len(tape.node_type)
            recorder = context.recorder = Recorder(tape, memory, index)
            try:
                outputs.add(recorder, model(types.params, instance))
            except Exception as error:
                reason = explain(error)
                if not (isinstance(instances, Sequence) and len(instances) == 1):
                    note = f"while recording instance {index} of the minibatch"
                    reason.add_note(note)
                if reason is error:
                    raise
                raise reason from error
            num_nodes.append(len(tape.node_type) - before)
    finally:
        context.recorder = outer
    return DataflowGraph(
        types=types,
        node_type=np.array(tape.node_type, np.int32),
        operands=np.array(tape.operands, np.int32),
        external_rows=np.array(tape.external_rows, np.int32),
        externals=tape.pools(),
        outputs=outputs.finish(types.trees),
        instance_nodes=np.array(num_nodes, np.int32),
        num_values=tape.num_values,
    )


def explain(error: Exception) -> Exception:
    """Turns JAX's complaint about a handle into an error that says how to fix it.

    Args:
        error: What a model raised while it was recorded.

    Returns:
        The error itself where it is about something else.
    """
    if isinstance(error, EdbatchError) or not is_about_stand_in(error):
        return error
    return RecordingError(
        f"a JAX operation was applied to a handle or a parameter outside a cell"
        f" ({raising_line(error)}): it has no value while the model is recorded; move"
        " the computation into a function marked with @eb.cell"
    )
