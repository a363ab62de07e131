"""Lists the facts that make up a type, argument by argument."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import jax

from edbatch.errors import shown
from edbatch.graph.constants import constant_key
from edbatch.graph.node_type import NodeType
from edbatch.graph.parameters import path_name
from edbatch.graph.type_table import TypeTable

# Where types differ in several aspects, the earlier reasons explain more.
REASONS = (
    *("definition", "parameters", "static argument", "list length", "padded length"),
    *("structure", "source", "dtype", "shape"),
)
Reason = Literal[
    "definition",
    "parameters",
    "static argument",
    "list length",
    "padded length",
    "structure",
    "source",
    "dtype",
    "shape",
]


@dataclass(frozen=True)
class Aspect:
    """A property in which types may differ.

    Attributes:
        reason: The kind of property.
        argument: The argument of the cell; empty for the cell itself.
    """

    reason: Reason
    argument: str = ""

    @property
    def rank(self) -> int:
        """Position of its kind in `REASONS`."""
        return REASONS.index(self.reason)

    def __str__(self) -> str:
        return f"{self.reason} of {self.argument!r}" if self.argument else self.reason


@dataclass(frozen=True)
class Facts:
    """The facts of a type.

    Attributes:
        type_id: The type.
        cell: Name and code of its cell, which several definitions of a cell share.
        name: The cell's name.
        values: For each aspect, a hashable value that is equal for types that agree.
        texts: For each aspect, the value as text for people.
    """

    type_id: int
    cell: Hashable
    name: str
    values: dict[Aspect, Hashable] = field(default_factory=dict)
    texts: dict[Aspect, str] = field(default_factory=dict)

    def without(self, aspect: Aspect) -> Hashable:
        """Returns the values of all other aspects."""
        return frozenset(
            (key, each) for key, each in self.values.items() if key != aspect
        )

    def differing(self, other: "Facts") -> list[Aspect]:
        """Returns the aspects in which two types differ."""
        return [
            each
            for each in dict.fromkeys([*self.values, *other.values])
            if self.values.get(each) != other.values.get(each)
        ]

    def text(self, aspect: Aspect) -> str:
        """Returns the value of an aspect as text for people."""
        return self.texts.get(aspect, "none")

    def note(self, aspect: Aspect, value: Hashable, text: str) -> None:
        """Adds an aspect."""
        self.values[aspect], self.texts[aspect] = value, text


def facts_of(node_type: NodeType, types: TypeTable) -> Facts:
    """Finds the facts of a type.

    Args:
        node_type: A recorded type.
        types: The table that it is in.

    Returns:
        Its facts.
    """
    function = node_type.cell.function
    code = getattr(function, "__code__", function)
    name = node_type.key.cell
    facts = Facts(node_type.id, (name, code), name)
    facts.note(Aspect("definition"), id(function), f"function {id(function):#x}")
    template = node_type.template
    tree = jax.tree.unflatten(template.treedef, range(template.treedef.num_leaves))
    for argument, part in _arguments(node_type, tree):
        _note_structure(facts, node_type, argument, part)
        places = jax.tree.leaves(part)
        _note_leaves(facts, node_type, types, argument, places)
    return facts


def _arguments(node_type: NodeType, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yields a call's arguments by name, with positions in place of arrays."""
    args, kwargs = tree
    cell = node_type.cell
    names = [*cell.positions, *filter(None, [cell.variadic])]
    for k, part in enumerate(args):
        yield names[k] if k < len(names) else f"argument {k}", part
    yield from kwargs.items()


def _note_structure(
    facts: Facts, node_type: NodeType, argument: str, part: Any
) -> None:
    """Notes an argument's length, if it is a list, or its structure."""
    treedef = jax.tree.structure(part)
    if isinstance(part, list | tuple) and argument not in node_type.cell.padded:
        kind = type(part).__name__
        elements = frozenset(jax.tree.structure(each) for each in part)
        facts.note(Aspect("list length", argument), len(part), str(len(part)))
        facts.note(Aspect("structure", argument), (kind, elements), kind)
    elif argument not in node_type.cell.static:
        facts.note(Aspect("structure", argument), treedef, _shape_of(treedef))


def _shape_of(treedef: Any) -> str:
    return str(treedef).removeprefix("PyTreeDef(").removesuffix(")")


def _note_leaves(
    facts: Facts,
    node_type: NodeType,
    types: TypeTable,
    argument: str,
    places: list[int],
) -> None:
    """Notes the aspects of the leaves of an argument."""
    template = node_type.template
    sources, dtypes, shapes, paths, statics, lengths = [], [], [], [], [], []
    for place in places:
        kind, content = template.leaves[place]
        if kind == "parameter":
            sources.append("a parameter")
            paths.append(path_name(content) or "all parameters")
        elif kind == "static":
            sources.append("a constant")
            statics.append(content)
        elif kind == "rng":
            sources.append("a key")
        else:
            is_value = kind == "operand"
            sources.append("a cell's output" if is_value else "an input")
            groups = template.operands if is_value else template.externals
            kinds = node_type.operand_kinds if is_value else node_type.external_kinds
            slots = groups[content].slots
            aval = types.avals[kinds[slots[0]]]
            dtypes.append(str(aval.dtype))
            shapes.append(str(list(aval.shape)))
            if groups[content].stacked:
                lengths.append(len(slots))
    found: tuple[tuple[Reason, list[str]], ...] = (
        ("source", sources),
        ("dtype", dtypes),
        ("shape", shapes),
        ("parameters", paths),
    )
    for reason, own in found:
        distinct = tuple(dict.fromkeys(own))
        if own:
            facts.note(Aspect(reason, argument), distinct, " and ".join(distinct))
    if statics:
        key = tuple(map(constant_key, statics))
        text = ", ".join(shown(each) for each in statics)
        facts.note(Aspect("static argument", argument), key, text)
    if lengths:
        facts.note(Aspect("padded length", argument), lengths[0], str(lengths[0]))
