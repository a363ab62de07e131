"""The hot path of recording in Python, used where there is no compiled one.

`PythonCalls.call` runs once per node, while the user waits: it finds the node's type by
the structure of the arguments alone, following a tree of earlier calls, and appends a
few integers to the tape. `compiled_recording` does the same in compiled code; this
module is the reference for correct recordings.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from edbatch.graph.cell import RNG, Cell
from edbatch.graph.dataflow_graph import MISSING
from edbatch.graph.external_input import NUMBERS
from edbatch.graph.handle import Handle, reject_foreign
from edbatch.graph.node_keys import NODE_KEY
from edbatch.graph.parameter_value import parameters_as_values
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.recording_bases import Branch, KnownType
from edbatch.graph.tape import InstanceTape

_CLOSE = None  # the end of a tuple or a list
_END = "end"  # the end of the arguments


class PythonCalls(InstanceTape):
    """Records the calls of one instance onto a tape."""

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
        if takes_key and self.tape.keyless:
            cell.require_default_rng()
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
        if len(tape.node_type) >= tape.node_limit:
            tape.refuse_node()
        tape.node_type.append(known.id)
        if operands:
            tape.operands.extend(operands)
        if externals:
            if len(externals) == 1 and type(externals[0]) in NUMBERS:  # e.g. a word id
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
                for each in arg:  # handles are read here to avoid recursive calls
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
        """Like `_scan`, for a cell that has padded or static arguments."""
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
        for each in elements:
            element = each
            if type(each) is not Handle:
                element = parameters_as_values(self, each)
            ended = self._scan((element,), start, found, none)
            if ended is None or none or (end is not None and ended is not end):
                return None  # elements differ: the analysis reports how
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
        raise NotImplementedError
