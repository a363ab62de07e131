"""What models return: its structure once, and flat columns of values per instance.

A model returns a pytree of handles. The structure is described by nested tuples:

* ``("value", kind)``: a node's output; ``("external", kind)``: a concrete array;
* ``("node", treedef, children)``: a tuple, dict or other pytree node;
* ``("list", child)``: a Python list whose elements are all alike. Its length may vary
  between instances, so it is kept apart, in a column of lengths.

Every leaf has a column that holds its values for all instances (and all elements of
the lists around it) one after the other, so merging graphs concatenates columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from edbatch.errors import RecordingError
from edbatch.graph.external_input import NotAnInputError, as_input
from edbatch.graph.handle import Handle
from edbatch.graph.node_keys import is_key
from edbatch.graph.parameters import ParameterPath

if TYPE_CHECKING:
    from edbatch.graph.recorder import Recorder

Skeleton = tuple[Any, ...]
EMPTY: Skeleton = ("empty",)  # the element of a list that was always empty


@dataclass(frozen=True)
class Outputs:
    """Outputs of all instances of a graph.

    Attributes:
        skeleton: Their common structure.
        columns: One ``[n] int32`` array per leaf in depth-first order: value ids, or
            rows of external inputs.
        lengths: One ``[m] int32`` array per ``"list"`` in depth-first order.
    """

    skeleton: Skeleton
    columns: tuple[np.ndarray, ...]
    lengths: tuple[np.ndarray, ...]


def count(skeleton: Skeleton) -> tuple[int, int]:
    """Counts the columns and the length columns of a structure.

    Args:
        skeleton: A structure.

    Returns:
        Number of leaves and of ``"list"`` nodes.

    Example:
        >>> count(("list", ("value", 0)))
        (1, 1)
    """
    if skeleton[0] == "list":
        columns, lengths = count(skeleton[1])
        return columns, lengths + 1
    if skeleton[0] == "node":
        counts = [count(each) for each in skeleton[2]]
        return sum(each[0] for each in counts), sum(each[1] for each in counts)
    return (0, 0) if skeleton == EMPTY else (1, 0)


def leaves(skeleton: Skeleton) -> list[Skeleton]:
    """Lists the leaves of a structure in the order of its columns.

    Args:
        skeleton: A structure.

    Returns:
        ``("value", kind)`` and ``("external", kind)`` tuples.

    Example:
        >>> leaves(("list", ("value", 3)))
        [('value', 3)]
    """
    if skeleton[0] == "list":
        return leaves(skeleton[1])
    if skeleton[0] == "node":
        return [leaf for each in skeleton[2] for leaf in leaves(each)]
    return [] if skeleton == EMPTY else [skeleton]


class Mismatch(Exception):
    """Two structures differ."""


def unify(first: Skeleton, second: Skeleton) -> Skeleton:
    """Finds the common structure of two outputs; lists may have been empty in one.

    Args:
        first: A structure.
        second: Another.

    Returns:
        The structure that both have.

    Raises:
        Mismatch: They have none.

    Example:
        >>> unify(("list", EMPTY), ("list", ("value", 0)))
        ('list', ('value', 0))
    """
    if first is second or first == second or second == EMPTY:
        return first
    if first == EMPTY:
        return second
    if first[0] == second[0] == "list":
        return ("list", unify(first[1], second[1]))
    if first[0] == second[0] == "node" and first[1] == second[1]:
        pairs = zip(first[2], second[2], strict=True)
        return ("node", first[1], tuple(unify(a, b) for a, b in pairs))
    raise Mismatch


def spread(
    outputs: Outputs, skeleton: Skeleton
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Aligns the columns of outputs with a wider common structure.

    Args:
        outputs: Outputs whose structure was unified into ``skeleton``.
        skeleton: The wider structure.

    Returns:
        Columns and length columns of the wider structure, empty where it was empty.
    """
    columns: list[np.ndarray] = []
    lengths: list[np.ndarray] = []
    own_columns, own_lengths = iter(outputs.columns), iter(outputs.lengths)
    nothing = np.zeros(0, np.int32)

    def walk(own: Skeleton, wide: Skeleton) -> None:
        if own == EMPTY:
            num_columns, num_lengths = count(wide)
            columns.extend([nothing] * num_columns)
            lengths.extend([nothing] * num_lengths)
        elif own[0] == "list":
            lengths.append(next(own_lengths))
            walk(own[1], wide[1])
        elif own[0] == "node":
            for one, other in zip(own[2], wide[2], strict=True):
                walk(one, other)
        else:
            columns.append(next(own_columns))

    walk(outputs.skeleton, skeleton)
    return columns, lengths


class OutputColumns:
    """Collects the outputs of instances while they are recorded."""

    def __init__(self) -> None:
        self._skeleton: Skeleton | None = None
        self._columns: list[list[int]] = []
        self._lengths: list[list[int]] = []

    def add(self, recorder: "Recorder", result: Any) -> None:
        """Appends what the model returned for one instance.

        Args:
            recorder: The instance's recorder.
            result: A pytree of handles and arrays.

        Raises:
            RecordingError: A leaf is neither, or its structure differs from that of
                the instances before.
        """
        flat = _Flat(recorder)
        skeleton = flat.describe(result)
        if skeleton == self._skeleton:
            pass
        elif self._skeleton is None:
            self._skeleton = skeleton
            self._columns = [[] for _ in flat.columns]
            self._lengths = [[] for _ in flat.lengths]
        else:
            self._widen(flat, skeleton)
        for column, values in zip(self._columns, flat.columns, strict=True):
            column.extend(values)
        for column, values in zip(self._lengths, flat.lengths, strict=True):
            column.extend(values)

    def _widen(self, flat: "_Flat", skeleton: Skeleton) -> None:
        own = self.finish()
        common = unify_outputs(own.skeleton, skeleton)
        columns, lengths = spread(own, common)
        self._columns = [each.tolist() for each in columns]
        self._lengths = [each.tolist() for each in lengths]
        flat.widen(skeleton, common)
        self._skeleton = common

    def finish(self, known: dict[Skeleton, Skeleton] | None = None) -> Outputs:
        """Returns everything collected, as arrays.

        Args:
            known: Structures met before; equal ones become one object, so that merging
                can compare them by identity.

        Returns:
            The outputs.
        """
        skeleton = self._skeleton or EMPTY
        if known is not None:
            skeleton = known.setdefault(skeleton, skeleton)
        return Outputs(skeleton, _arrays(self._columns), _arrays(self._lengths))


def _arrays(columns: list[list[int]]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(each, np.int32) for each in columns)


def unify_outputs(first: Skeleton, second: Skeleton) -> Skeleton:
    """As `unify`, with an error for users.

    Args:
        first: Structure of some instances' outputs.
        second: Structure of another's.

    Returns:
        The common structure.

    Raises:
        RecordingError: There is none.
    """
    try:
        return unify(first, second)
    except Mismatch:
        raise RecordingError(
            "the model returns outputs of different structure, shape or dtype for"
            f" different instances: {_describe(first)} and {_describe(second)}; return"
            " the same pytree for every instance (only lists may differ in length)"
        ) from None


def _describe(skeleton: Skeleton) -> str:
    if skeleton[0] == "list":
        return f"[{_describe(skeleton[1])}, ...]"
    if skeleton[0] == "node":
        children = [_describe(each) for each in skeleton[2]]
        return str(jax.tree.unflatten(skeleton[1], children)).replace("'", "")
    return "*" if skeleton == EMPTY else f"{skeleton[0]} of kind {skeleton[1]}"


_CONTAINERS = (tuple, dict, type(None))


@cache
def _tuple_structure(length: int) -> Any:
    return jax.tree.structure((0,) * length)


@cache
def _dict_structure(keys: tuple[str, ...]) -> Any:
    return jax.tree.structure(dict.fromkeys(keys, 0))


class _Flat:
    """Describes one result and collects its leaves."""

    def __init__(self, recorder: "Recorder") -> None:
        self.recorder = recorder
        self.columns: list[list[int]] = []
        self.lengths: list[list[int]] = []

    def widen(self, own: Skeleton, common: Skeleton) -> None:
        """Aligns the columns with a wider structure."""
        found = Outputs(own, _arrays(self.columns), _arrays(self.lengths))
        columns, lengths = spread(found, common)
        self.columns = [each.tolist() for each in columns]
        self.lengths = [each.tolist() for each in lengths]

    def describe(self, result: Any) -> Skeleton:
        if type(result) is Handle:
            if result._recorder is not self.recorder:
                self.recorder.reject_foreign(result)
            self.columns.append([result._value])
            return ("value", result._kind)
        if type(result) is list:
            return self._describe_list(result)
        if type(result) not in _CONTAINERS and jax.tree_util.all_leaves([result]):
            return self._external(result)
        children: Sequence[Any]
        if type(result) is tuple:
            children, treedef = result, _tuple_structure(len(result))
        elif type(result) is dict and all(type(key) is str for key in result):
            keys = tuple(sorted(result))  # the order of JAX
            children, treedef = [result[key] for key in keys], _dict_structure(keys)
        else:
            children, treedef = jax.tree.flatten(
                result, is_leaf=lambda node: node is not result
            )
        return ("node", treedef, tuple([self.describe(each) for each in children]))

    def _describe_list(self, result: list[Any]) -> Skeleton:
        place = len(self.lengths)
        self.lengths.append([len(result)])
        first = len(self.columns)
        if all(type(each) is Handle for each in result) and result:
            kinds = {each._kind for each in result}
            if len(kinds) == 1 and all(
                each._recorder is self.recorder for each in result
            ):
                self.columns.append([each._value for each in result])
                return ("list", ("value", kinds.pop()))
        parts = []
        for each in result:
            flat = _Flat(self.recorder)
            parts.append((flat.describe(each), flat))
        try:
            element = reduce(unify, dict.fromkeys(own for own, _ in parts), EMPTY)
        except Mismatch:
            pass
        else:
            for skeleton, flat in parts:
                if skeleton != element:  # an empty list, or one inside it
                    flat.widen(skeleton, element)
            columns, lengths = count(element)
            self.columns += [
                [v for _, flat in parts for v in flat.columns[k]]
                for k in range(columns)
            ]
            self.lengths += [
                [v for _, flat in parts for v in flat.lengths[k]]
                for k in range(lengths)
            ]
            return ("list", element)
        # Elements of several structures: a fixed node, like a tuple.
        del self.lengths[place:], self.columns[first:]
        for _, flat in parts:
            self.columns += flat.columns
            self.lengths += flat.lengths
        treedef = jax.tree.structure(result, is_leaf=lambda node: node is not result)
        return ("node", treedef, tuple(skeleton for skeleton, _ in parts))

    def _external(self, result: Any) -> Skeleton:
        if isinstance(result, ParameterPath):
            raise RecordingError(
                f"the model returns {result!r}, a parameter; return handles of cells"
                " and arrays, and wrap a parameter in a cell to return it"
            )
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
        kind = self.recorder.types.kind_of(found)
        row = self.recorder.array_row(kind, found)
        self.columns.append([row])
        return ("external", kind)
