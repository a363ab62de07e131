"""Recording: running a model on one instance with handles instead of arrays.

`Recorder.call` runs once per node, while the user waits: it finds the node's type among
the earlier calls, by the structure of the arguments alone, and appends a few integers
to the tape. It is implemented in `compiled_recording`, or in `python_recording` if the
extension was not built. Only a type's first node is analysed, and its cell traced.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edbatch.errors import EdbatchError, RecordingError, raising_line, user_line
from edbatch.graph.call_analysis import CallAnalysis
from edbatch.graph.call_memory import CallMemory
from edbatch.graph.cell import RNG, Cell
from edbatch.graph.context import context
from edbatch.graph.dataflow_graph import MISSING, DataflowGraph
from edbatch.graph.external_input import NUMBERS
from edbatch.graph.handle import Handle, reject_foreign
from edbatch.graph.node_keys import NODE_KEY
from edbatch.graph.output_recording import OutputColumns
from edbatch.graph.parameter_value import parameters_as_values
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.recording_bases import KnownType, recording_is_compiled
from edbatch.graph.stand_in import is_about_stand_in
from edbatch.graph.tape import InstanceTape, Tape
from edbatch.graph.type_checks import require_setting
from edbatch.graph.type_table import TypeTable

if TYPE_CHECKING or not recording_is_compiled():
    from edbatch.graph.python_recording import PythonCalls as Calls
else:
    from edbatch.graph import compiled_recording

    Calls = InstanceTape
    compiled_recording.connect(
        context=type(context),
        handle=Handle,
        parameter=ParameterPath,
        ndarray=np.ndarray,
        numbers=NUMBERS,
        node_key=NODE_KEY,
        missing=MISSING,
        rng=RNG,
        reject_foreign=reject_foreign,
        as_values=parameters_as_values,
    )


class AsksForValueError(RecordingError):
    """A model requests a value while it is only recorded."""


class Recorder(Calls):
    """Records one instance onto a tape.

    Example:
        >>> import edbatch as eb
        >>> @eb.cell
        ... def double(params, x):
        ...     return params * x
        >>> batched = eb.batch(double, params=2.0)
        >>> graph = batched.record(1.0)  # a recorder takes the calls of `double`
        >>> graph.num_nodes
        1
    """

    def __init__(self, tape: Tape, memory: CallMemory, instance: int = 0) -> None:
        super().__init__(tape, instance)
        self._memory = memory

    def __repr__(self) -> str:
        """Summary in one line."""
        return f"<Recorder of instance {self._instance}>"

    def value(self, tree: Any) -> Any:
        """Raises `AsksForValueError`: while a model is recorded, no cell runs.

        Args:
            tree: The handles whose values the model requests.
        """
        raise AsksForValueError(
            f"the model asks for a value ({user_line()}), but .record, .graph and .plan"
            " run no cell, so there is none; call the batched function on instances,"
            " none of them a recording, or plan and differentiate the recordings of"
            " batched.rollout(params, instances)"
        )

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
            self,
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
        types: The model's table of types, to which new types are added.
        instances: Inputs of the model.
        memory: Cache of earlier calls; pass it again to record faster.

    Returns:
        The dataflow graph of all instances, topologically ordered.

    Raises:
        RecordingError: The model does something outside cells that cannot be recorded.
        CellError: A cell cannot be traced.
        PlanError: The table was made under another setting of ``jax_enable_x64``.

    Example:
        >>> import edbatch as eb
        >>> from edbatch.graph import TypeTable
        >>> from edbatch.graph.parameter_structure import abstract
        >>> double = eb.cell(lambda params, x: params * x)
        >>> graph = record(double, TypeTable(abstract(2.0)), [1.0, 5.0])
        >>> graph.num_nodes, graph.num_instances
        (2, 2)
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
            finally:
                recorder.parameter_handles.clear()  # they refer to the recorder
            num_nodes.append(len(tape.node_type) - before)
    finally:
        context.recorder = outer
    return DataflowGraph(
        types=types,
        node_type=np.array(tape.node_type, np.int32),
        operands=np.array(tape.operands, np.int32),
        external_rows=np.array(tape.external_rows, np.int32),
        externals=tape.pools([*enumerate(num_nodes)]),
        outputs=outputs.finish(types.trees),
        instance_nodes=np.array(num_nodes, np.int32),
        num_values=tape.num_values,
    )


def explain(error: Exception) -> Exception:
    """Converts an error about a handle or a parameter into one that names the fix.

    Args:
        error: The exception that a model raised while it was recorded.

    Returns:
        The converted error, or the error itself if it is about something else.
    """
    if isinstance(error, EdbatchError) or not is_about_stand_in(error):
        return error
    return RecordingError(
        f"a JAX operation was applied to a handle or a parameter outside a cell"
        f" ({raising_line(error)}): it has no value while the model is recorded; move"
        " the computation into a function marked with @eb.cell"
    )
