"""The general analysis of one call of a cell: any pytrees, padded and static arguments.

It classifies every leaf of the arguments (operand, external input, parameter, static)
and numbers the slots of the node. The recorder uses it for the first node of a type,
and for calls that its fast path does not cover.
"""

from typing import Any

import jax
import numpy as np

from edbatch.errors import CellError, RecordingError, user_line
from edbatch.graph.cell import Cell
from edbatch.graph.dataflow_graph import MISSING
from edbatch.graph.external_input import (
    ABSENT,
    NotAnInputError,
    as_input,
    input_dtype,
)
from edbatch.graph.handle import Handle, reject_foreign
from edbatch.graph.node_keys import NODE_KEY, is_key, key_dtype
from edbatch.graph.node_type import CallTemplate, Padding, Slots
from edbatch.graph.parameter_value import parameters_as_values
from edbatch.graph.parameters import ParameterPath, is_sequence
from edbatch.graph.tape import InstanceTape

_ARGUMENTS = (
    "arguments are pytrees of handles, parameters, numbers and arrays, or are declared"
    " with @eb.cell(static=...)"
)


class CallAnalysis:
    """Slots and structure of one call.

    Attributes:
        operands: Number of the value read by each operand slot, or `MISSING`.
        operand_kinds: Array kind per operand slot.
        externals: Number or array per external slot, `ABSENT` or `NODE_KEY`.
        external_kinds: Array kind per external slot.
    """

    def __init__(self, recorder: InstanceTape, cell: Cell) -> None:
        self.recorder = recorder
        self.cell = cell
        self.operands: list[int] = []
        self.operand_kinds: list[int] = []
        self.externals: list[Any] = []
        self.external_kinds: list[int] = []
        self._groups: dict[str, list[Slots]] = {"operand": [], "external": []}
        self._paddings: list[Padding] = []

    def template(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallTemplate:
        """Analyses the arguments; fills the slots and returns the call's template."""
        self.cell.check_positions(len(args))
        named = dict(zip(self.cell.positions, args, strict=False))
        rest = args[len(named) :]
        self._check_arguments(kwargs)
        positional = [self._argument(each, named[each]) for each in named]
        positional += [self._argument(None, each) for each in rest]
        keyword = {each: self._argument(each, kwargs[each]) for each in sorted(kwargs)}
        structure = (tuple(positional), keyword)
        leaves, treedef = jax.tree.flatten(
            structure, is_leaf=lambda node: isinstance(node, _Leaf)
        )
        return CallTemplate(
            treedef,
            tuple(each.content for each in leaves),
            tuple(self._groups["operand"]),
            tuple(self._groups["external"]),
            tuple(self._paddings),
        )

    def _check_arguments(self, kwargs: dict[str, Any]) -> None:
        for mask in self.cell.masks.values():
            if mask in kwargs:
                raise CellError(
                    f"cell {self.cell.name!r} received {mask!r}, which edbatch fills"
                    " in for the padded list; leave it out"
                )

    def _argument(self, name: str | None, value: Any) -> Any:
        if name in self.cell.static:
            self.cell.constant(value, name)
            return _Leaf(("static", value))
        if name in self.cell.masks:
            return self._padded(name, value)
        return jax.tree.map(self._leaf, value)

    def _leaf(self, value: Any) -> "_Leaf":
        if isinstance(value, ParameterPath):
            return _Leaf(("parameter", value))
        if isinstance(value, str) or callable(value):
            try:
                hash(value)
            except TypeError:
                raise CellError(
                    f"cell {self.cell.name!r} received {type(value).__name__} as an"
                    f" argument ({user_line()}), a callable that is not hashable; make"
                    " its class hashable, a dataclass by @dataclass(frozen=True)"
                ) from None
            return _Leaf(("static", value))
        if value is NODE_KEY:
            return self._node_key()
        source, slot = self._slot(value)
        self._groups[source].append(Slots((slot,)))
        return _Leaf((source, len(self._groups[source]) - 1))

    def _node_key(self) -> "_Leaf":
        self.externals.append(NODE_KEY)
        self.external_kinds.append(self.recorder.types.kinds.number((), key_dtype()))
        groups = self._groups["external"]
        groups.append(Slots((len(self.externals) - 1,)))
        return _Leaf(("rng", len(groups) - 1))

    def _slot(self, value: Any) -> tuple[str, int]:
        """Adds a slot for one leaf; returns the slot's source and number."""
        if isinstance(value, Handle):
            if value._recorder is not self.recorder:
                reject_foreign(value)
            self.operands.append(value._value)
            self.operand_kinds.append(value._kind)
            return "operand", len(self.operands) - 1
        found = self._external(value)
        kinds = self.recorder.types.kinds
        if self.recorder.tape.is_full_of_types and not kinds.knows_value(found):
            # The call would have a new type. Refuse it before `of_value` adds an array
            # kind, which would be kept forever.
            self.recorder.tape.check_new_type(self.cell.name)
        self.externals.append(found)
        self.external_kinds.append(kinds.of_value(found))
        return "external", len(self.externals) - 1

    def _external(self, value: Any) -> Any:
        if isinstance(value, jax.core.Tracer):
            raise RecordingError(
                f"cell {self.cell.name!r} received a traced array as an external input"
                f" ({user_line()}); recording happens on the host, so call .record and"
                " .plan outside jit, grad and vmap, with concrete arrays, and use"
                " jax.vmap, lax.scan and the like inside cells, not around them; an"
                " array that is to have a gradient is a part of params"
            )
        if isinstance(value, jax.Array) and is_key(value.dtype):
            raise CellError(
                f"cell {self.cell.name!r} received a key at {user_line()}, but a key"
                " cannot be an input of a cell: name the argument 'rng', leave it out"
                " of the call, and pass rng=key where the minibatch runs, or pass"
                " jax.random.key_data(key)"
            )
        try:
            return as_input(value)
        except NotAnInputError as error:
            raise CellError(
                f"cell {self.cell.name!r}, called at {user_line()}, received"
                f" {error.what}; {error.fix or _ARGUMENTS}"
            ) from None

    def _padded(self, name: str, elements: Any) -> Any:
        if is_sequence(elements):
            elements = list(elements)
        self.cell.check_padded(elements, name)
        elements = parameters_as_values(self.recorder, elements)
        flat: list[tuple[list[Any], Any]] = [jax.tree.flatten(x) for x in elements]
        structure = flat[0][1]
        if any(tree != structure for _, tree in flat):
            raise CellError(
                f"cell {self.cell.name!r} received a padded list {name!r} whose"
                f" elements differ in structure ({user_line()}); all elements of one"
                " list must be alike"
            )
        if not structure.num_leaves:
            raise CellError(
                f"cell {self.cell.name!r} received a padded list {name!r} whose"
                f" elements hold no array ({user_line()}); pass their number as an"
                " argument"
            )
        length = self.cell.padded_length(len(elements))
        stacks = [
            self._stack(name, [leaves[k] for leaves, _ in flat], length)
            for k in range(structure.num_leaves)
        ]
        source, group = stacks[0].content
        self._paddings.append(Padding(self.cell.masks[name], source, group))
        return jax.tree.unflatten(structure, stacks)

    def _stack(self, name: str, values: list[Any], length: int) -> "_Leaf":
        found = [self._slot(each) for each in values]
        source = found[0][0]
        kinds, rows, absent = (
            (self.operand_kinds, self.operands, MISSING)
            if source == "operand"
            else (self.external_kinds, self.externals, ABSENT)
        )
        first = found[0][1]
        same_source = all(each == source for each, _ in found)
        if not same_source or len({kinds[slot] for _, slot in found}) > 1:
            alike = dict.fromkeys(map(_described, values))
            raise CellError(
                f"cell {self.cell.name!r} received a padded list {name!r} whose"
                f" elements differ ({user_line()}): {', '.join(alike)}; either all"
                " elements of a list are outputs of cells or none is, and have one"
                " shape and one dtype"
            )
        padding = length - len(values)
        rows.extend([absent] * padding)
        kinds.extend([kinds[first]] * padding)
        self._groups[source].append(Slots(tuple(range(first, first + length)), True))
        return _Leaf((source, len(self._groups[source]) - 1))


def _described(value: Any) -> str:
    """Describes an element of a list, and its origin, for an error message."""
    if isinstance(value, Handle):
        return repr(value).removeprefix("Handle(").removesuffix(")")
    found = as_input(value)
    shape = ", ".join(map(str, np.shape(found)))
    return f"{input_dtype(found)}[{shape}] that no cell has made"


class _Leaf:
    """A classified leaf of a call's arguments."""

    __slots__ = ("content",)

    def __init__(self, content: tuple[str, Any]) -> None:
        self.content = content
