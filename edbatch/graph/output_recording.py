"""Records the model's results: one pytree of handles and arrays per instance."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from edbatch.errors import RecordingError
from edbatch.graph.constants import number_marks
from edbatch.graph.external_input import NUMBERS, NotAnInputError, as_input
from edbatch.graph.handle import Handle, reject_foreign
from edbatch.graph.node_keys import is_key
from edbatch.graph.output_tree import Outputs, OutputTree
from edbatch.graph.parameter_value import parameter_as_value
from edbatch.graph.parameters import ParameterPath
from edbatch.graph.recording_bases import recording_is_compiled
from edbatch.graph.skeleton import EMPTY, Mismatch, Skeleton, describe, unify
from edbatch.graph.tape import InstanceTape

RETURNED = "was returned by the model"


class OutputColumns:
    """Collects the outputs of instances while they are recorded."""

    def __init__(self) -> None:
        self._skeleton: Skeleton | None = None
        self._columns: list[list[int]] = []
        self._lengths: list[list[int]] = []
        # Key and kind of each handle, if the last result was a dict of handles only.
        self._keys: list[tuple[str, int]] = []

    def add(self, recorder: InstanceTape, result: Any) -> None:
        """Appends the model's result for one instance.

        Args:
            recorder: The instance's tape.
            result: A pytree of handles and arrays.

        Raises:
            RecordingError: A leaf is neither a handle nor an array, or the structure
                differs from that of earlier instances.
        """
        if type(result) is dict and self._add_as_before(recorder, result):
            return
        flat = _ResultLeaves(recorder)
        skeleton = flat.describe(result)
        if skeleton == self._skeleton:
            self._keys = _keys_of_handles(result)  # for `_add_as_before`
        elif self._skeleton is None:
            self._skeleton = skeleton
            self._columns = [[] for _ in flat.columns]
            self._lengths = [[] for _ in flat.lengths]
        else:
            self._keys = []
            self._widen(flat, skeleton)
        for column, values in zip(self._columns, flat.columns, strict=True):
            column.extend(values)
        for column, values in zip(self._lengths, flat.lengths, strict=True):
            column.extend(values)

    def _add_as_before(self, recorder: InstanceTape, result: dict[Any, Any]) -> bool:
        """Adds a dict of handles like the last one, without describing it again."""
        if len(result) != len(self._keys) or not result:
            return False
        values = []
        for key, kind in self._keys:
            each = result.get(key)
            if type(each) is not Handle or each._kind != kind:
                return False
            if each._recorder is not recorder:
                return False
            values.append(each._value)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        return True

    def _widen(self, flat: "_ResultLeaves", skeleton: Skeleton) -> None:
        own = self.finish()
        common = own.tree.unify(OutputTree(skeleton), flat.recorder.types.avals)
        wide = own.widen(common)
        self._columns = [each.tolist() for each in wide.columns]
        self._lengths = [each.tolist() for each in wide.lengths]
        flat.widen(skeleton, common.skeleton)
        self._skeleton = common.skeleton

    def finish(self, known: dict[OutputTree, OutputTree] | None = None) -> Outputs:
        """Returns everything collected, as arrays.

        Args:
            known: Known structures; equal ones become one object, so that merging can
                compare them by identity.

        Returns:
            The outputs.
        """
        tree = OutputTree(self._skeleton or EMPTY)
        if known is not None:
            tree = known.setdefault(tree, tree)
        return Outputs(tree, _arrays(self._columns), _arrays(self._lengths))


def _arrays(columns: list[list[int]]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(each, np.int32) for each in columns)


def _keys_of_handles(result: Any) -> list[tuple[str, int]]:
    """Key and kind of each handle of a dict, in JAX's order; else empty."""
    if type(result) is not dict:
        return []
    if not all(type(k) is str and type(v) is Handle for k, v in result.items()):
        return []
    return [(key, result[key]._kind) for key in sorted(result)]


def _handle_column(
    recorder: InstanceTape, items: list[Any]
) -> tuple[int, list[int]] | None:
    """Array kind and values of a list of handles of one kind; otherwise None."""
    if not items or not all(type(each) is Handle for each in items):
        return None
    kinds = {each._kind for each in items}
    if len(kinds) > 1 or any(each._recorder is not recorder for each in items):
        return None
    return kinds.pop(), [each._value for each in items]


if TYPE_CHECKING or not recording_is_compiled():
    handle_column = _handle_column
else:
    from edbatch.graph.compiled_recording import handle_column


_CONTAINERS = (tuple, dict, type(None))


def _tuple_structure(length: int) -> Any:
    return jax.tree.structure((0,) * length)


def _dict_structure(keys: tuple[str, ...]) -> Any:
    return jax.tree.structure(dict.fromkeys(keys, 0))


class _ResultLeaves:
    """Describes one result and collects its leaves."""

    def __init__(self, recorder: InstanceTape) -> None:
        self.recorder = recorder
        self.columns: list[list[int]] = []
        self.lengths: list[list[int]] = []

    def widen(self, own: Skeleton, common: Skeleton) -> None:
        """Aligns the columns with a wider structure."""
        found = Outputs(
            OutputTree(own), _arrays(self.columns), _arrays(self.lengths)
        ).widen(OutputTree(common))
        self.columns = [each.tolist() for each in found.columns]
        self.lengths = [each.tolist() for each in found.lengths]

    def _structure(self, make: Callable[[Any], Any], key: Any) -> Any:
        """Returns a structure, cached with the types of the model."""
        return self.recorder.types.derived((make, key), lambda: make(key))

    def describe(self, result: Any) -> Skeleton:
        if type(result) is Handle:
            if result._recorder is not self.recorder:
                reject_foreign(result, RETURNED)
            self.columns.append([result._value])
            return ("value", result._kind)
        if type(result) is ParameterPath:
            return self.describe(parameter_as_value(self.recorder, result))
        if type(result) is list:
            return self._describe_list(result)
        if type(result) not in _CONTAINERS and jax.tree_util.all_leaves([result]):
            return self._external(result)
        children: Sequence[Any]
        marks: tuple[str, ...] = ()
        if type(result) is tuple:
            children = result
            treedef = self._structure(_tuple_structure, len(result))
        elif type(result) is dict and all(type(key) is str for key in result):
            keys = tuple(sorted(result))  # JAX's order
            children = [result[key] for key in keys]
            treedef = self._structure(_dict_structure, keys)
        else:
            children, treedef = jax.tree.flatten(
                result, is_leaf=lambda node: node is not result
            )
            marks = number_marks(treedef)
        parts = tuple([self.describe(each) for each in children])
        return ("node", treedef, parts, marks)

    def _describe_list(self, result: list[Any]) -> Skeleton:
        self.lengths.append([len(result)])
        found = handle_column(self.recorder, result)
        if found is not None:
            self.columns.append(found[1])
            return ("list", ("value", found[0]))
        if result and type(result[0]) in NUMBERS and len({*map(type, result)}) == 1:
            return self._describe_numbers(result)
        parts = []
        for each in result:
            flat = _ResultLeaves(self.recorder)
            parts.append((flat.describe(each), flat))
        element = reduce(self._unify, dict.fromkeys(own for own, _ in parts), EMPTY)
        for skeleton, flat in parts:
            if skeleton != element:  # it is, or contains, an empty list
                flat.widen(skeleton, element)
        tree = OutputTree(element)
        self.columns += [
            [v for _, flat in parts for v in flat.columns[k]]
            for k in range(len(tree.leaves))
        ]
        self.lengths += [
            [v for _, flat in parts for v in flat.lengths[k]]
            for k in range(len(tree.lists))
        ]
        return ("list", element)

    def _unify(self, first: Skeleton, second: Skeleton) -> Skeleton:
        """Returns the common skeleton of two elements of a list."""
        try:
            return unify(first, second)
        except Mismatch:
            one, two = (describe(e, self.recorder.types.avals) for e in (first, second))
            raise RecordingError(
                "a list in a model's output may have any length, so its elements have"
                f" one structure, shape and dtype, but here they are {one} and {two};"
                " return a tuple, whose elements may differ"
            ) from None

    def _describe_numbers(self, result: list[Any]) -> Skeleton:
        """Describes a list of numbers of one class, such as a parser's actions."""
        kind = self.recorder.types.kinds.of_value(result[0])
        rows = self.recorder.tape.externals[kind]
        self.columns.append([*range(len(rows), len(rows) + len(result))])
        rows += result
        return ("list", ("external", kind))

    def _external(self, result: Any) -> Skeleton:
        if isinstance(result, jax.Array) and is_key(result.dtype):
            raise RecordingError(
                f"the model returns {type(result).__name__}, a key, but results are"
                " numbers; return jax.random.key_data(key)"
            )
        try:
            found = as_input(result)
        except NotAnInputError as error:
            fix = error.fix or "return a pytree of handles, numbers and arrays"
            raise RecordingError(f"the model returns {error.what}; {fix}") from None
        kind = self.recorder.types.kinds.of_value(found)
        row = self.recorder.array_row(kind, found)
        self.columns.append([row])
        return ("external", kind)
